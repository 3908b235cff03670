# Long runs, records of other programs, mutants and releases; the Makefile includes this file. `make help-more` lists the targets.

.PHONY: attack
attack: build tools ## the attacks of one user on others and on the service, with their full counts
	VERBENA=$(CURDIR)/$(BIN) ATTACK_FULL=1 $(GO) test -json -count=1 -timeout 3h -tags e2e -run '^TestAttack' ./test/e2e | bin/verdict -v

.PHONY: abi
abi: ## record what the kernel's rxe answers to system calls on its files, in QEMU (test/abi)
	@scripts/deps ibverbs-utils ibverbs-providers python3 gcc libc6-dev libibverbs-dev librdmacm-dev && test/interop/guest/build -q
	test/abi/record

.PHONY: yama
yama: build ## where Yama restricts ptrace: Debian's kernel in QEMU
	@scripts/deps ibverbs-utils ibverbs-providers && test/interop/guest/build -q
	VERBENA=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 15m -v -tags interop ./test/yama

.PHONY: verb-faults
verb-faults: build ## docs/results/failover-verbs.md: make each verb of many programs fail at each of its calls, and record the reaction; PROGRAMS is a pattern
	@scripts/deps ibverbs-utils ibverbs-providers perftest rdmacm-utils qperf ucx-utils libfabric-bin
	VERBENA=$(CURDIR)/$(BIN) VERB_FAULTS='$(or $(PROGRAMS),.)' $(GO) test -count=1 -timeout 2h -parallel 6 -v -tags e2e -run '^TestVerbFaults$$' ./test/e2e

.PHONY: kernels
kernels: build ## programs on the kernels of Debian's releases (SUITES chooses), in QEMU; without SUITES it records them for docs/results/kernels.md
	@scripts/deps ibverbs-utils ibverbs-providers perftest rdmacm-utils
	VERBENA=$(CURDIR)/$(BIN) SUITES="$(SUITES)" $(GO) test -count=1 -timeout 1h -v -tags interop -run '^TestKernels$$' ./test/kernels

.PHONY: upgrade-test
upgrade-test: build ## commands of the git revisions OLD (default: two of the first days) with this service, and the other way round
	VERBENA=$(CURDIR)/$(BIN) OLD="$(OLD)" $(GO) test -count=1 -timeout 10m -v -tags upgrade ./test/upgrade

.PHONY: soak-failover
soak-failover: build ## FAILOVER (default 100) runs of each scenario of examples/failover: right, again, with the bug, without the fault
	VERBENA=$(CURDIR)/$(BIN) FAILOVER=$${FAILOVER:-100} $(GO) test -count=1 -timeout 3h -parallel 2 -tags e2e -v -run '^TestFailover$$' ./test/e2e

.PHONY: soak-kill
soak-kill: build ## ROUNDS (default 10000) of programs that are killed at random moments; SEED repeats one
	VERBENA=$(CURDIR)/$(BIN) ROUNDS=$(or $(ROUNDS),10000) $(GO) test -count=1 -timeout 12h -v -tags e2e -run '^TestKillSoak$$' ./test/e2e

.PHONY: soak-users
soak-users: build ## ROUNDS (default 1000) of programs or launchers of two users that are stopped or killed at random moments
	VERBENA=$(CURDIR)/$(BIN) ROUNDS=$(or $(ROUNDS),1000) $(GO) test -count=1 -timeout 12h -v -tags e2e -run '^TestSoakUsers$$' ./test/e2e

.PHONY: soak-wakeups
soak-wakeups: ## WAKEUPS (default 3m20s) for each number of queue pairs, of posts at random moments to a service whose poller falls asleep
	WAKEUPS=$(or $(WAKEUPS),3m20s) $(GO) test -count=1 -timeout 2h -v -run '^TestWakeups$$' ./verbs/service

.PHONY: soak-connections
soak-connections: build ## ROUNDS (default 10) of 1000 connections that are set up and torn down at once, while one packet in fifty is lost
	VERBENA=$(CURDIR)/$(BIN) ROUNDS=$(or $(ROUNDS),10) $(GO) test -count=1 -timeout 2h -v -tags e2e -run '^TestManyConnections$$' ./test/e2e

.PHONY: soak-cm
soak-cm: ## SCHEDULES (default 10000) random schedules of the connection manager on virtual time, from SEED (1) on
	$(GO) test -count=1 -timeout 12h -v -run '^TestSchedules$$' ./rdmacm -schedules $(or $(SCHEDULES),10000) -seed $(or $(SEED),1)

.PHONY: soak-cm-kernel
soak-cm-kernel: build tools ## WALKS (default 10000) random sequences of librdmacm's calls, on Verbena and on the Linux kernel in QEMU, from WALK_FIRST (1) on
	WALKS=$(or $(WALKS),10000) INTEROP_RUN='^TestInterop$$/^walks$$' scripts/interop

.PHONY: shapes
shapes: build tools ## rates and delays that are asked for, beside those that are measured: of link set, and of tc with the kernel's rxe
	SHAPES=1 INTEROP_RUN='^TestInterop$$/^shapes$$' scripts/interop

.PHONY: soak-transport
soak-transport: ## SCHEDULES (default 10000) random schedules of each transport service on virtual time, from seed FIRST (1) on
	$(GO) test -count=1 -timeout 12h -v -run '^TestSchedules$$' ./driver/rxe/internal/simtest -schedules $(or $(SCHEDULES),10000) -first $(or $(FIRST),1)

.PHONY: soak-travel
soak-travel: ## SCHEDULES (default 10000) schedules of each service by the shortcut, as packets, and with the way changing: the outcome is the same
	$(GO) test -count=1 -timeout 12h -v -run '^TestTravel$$' ./driver/rxe/internal/simtest -travels $(or $(SCHEDULES),10000) -first $(or $(FIRST),1)

.PHONY: flood
flood: ## what a neighbour has while another process floods the device with packets, for some seconds
	$(GO) test -count=1 -timeout 5m -v -run '^TestFlood$$' ./driver/rxe -flood

.PHONY: mutants
mutants: tools ## break the code on purpose, in one place at a time: the transport's schedules, and unit tests, must notice
	$(GO) test -count=1 -timeout 2h -v -run '^TestMutants$$' ./driver/rxe/internal/simtest -mutants
	bin/mutants
	bin/mutants -generated
	$(GO) test -C tools -count=1 -timeout 20m -v -run '^Test(Drivers|Consumers)$$' ./wrong -wrong
	$(GO) test -count=1 -timeout 20m -v -run '^TestWrongDrivers$$' ./ib/ibtest -whole

.PHONY: mutants-drivers
mutants-drivers: tools ## defects of all kinds in the drivers, which the contract suite with its model must notice, 30 minutes of them; ARGS="-run ^driver/rxe"
	bin/mutants -drivers -budget 30m $(or $(ARGS),-sample 100 -seed $$(date +%s))

.PHONY: mutants-generated
mutants-generated: tools ## defects derived from the source of the packages that keep users apart, 30 minutes of them; ARGS="-run ^umem" chooses others than a sample
	bin/mutants -generated -budget 30m $(or $(ARGS),-sample 100 -seed $$(date +%s))

.PHONY: pyverbs
pyverbs: build ## rdma-core's own tests, one line for each; ARGS are the runner's (-h lists them)
	@scripts/deps python3-pyverbs rdma-core ibverbs-providers
	@$(BIN) run --private -- test/pyverbs/run $(ARGS) rxe0 1 1

.PHONY: rdma-core
rdma-core: build ## record what several versions of rdma-core say of Verbena and of the kernel's rxe; ARGS are those of test/rdmacore/record (-h)
	@scripts/deps mmdebstrap
	@test/rdmacore/record $(ARGS)

.PHONY: docs-session
docs-session: build ## make the picture of a session in the README anew
	PATH="$(CURDIR)/bin:$$PATH" $(GO) run ./test/session < docs/session.txt > docs/session.tmp && mv docs/session.tmp docs/session.svg

.PHONY: docs-interop
docs-interop: build tools ## the same, and make docs/results/interop.md anew
	@scripts/interop docs/results/interop.md

SOAK_RESETS ?= 10000
SOAK_PLUGS ?= 10000

RUNS ?= 200
CONCURRENCY = (Reentrant|Callback|HotPlug|SRQ|NoSleep|DeviceError)
.PHONY: soak-contract
soak-contract: ## the midlayer's contract: concurrency tests RUNS (default 200) times with the race detector, all of it 5 x RUNS times without
	CGO_ENABLED=1 $(GO) test -race -count=$(RUNS) -timeout 24h ./ib
	CGO_ENABLED=1 $(GO) test -race -count=$(RUNS) -timeout 24h -run 'TestContract/$(CONCURRENCY)' ./driver/loopback
	CGO_ENABLED=1 $(GO) test -race -count=$(RUNS) -timeout 24h -run 'TestContract/^(shortcut|wire)$$/$(CONCURRENCY)|TestConcurrent|TestDestroyUnderLoad' ./driver/rxe
	$(GO) test -count=$$((5 * $(RUNS))) -timeout 24h -run TestContract ./driver/loopback
	$(GO) test -count=$$((5 * $(RUNS) / 2)) -timeout 24h -run 'TestContract/^(shortcut|wire)$$' ./driver/rxe

.PHONY: soak-schedules
soak-schedules: ## the drivers' contract with random pauses at each Lock and Unlock, race detector on: SEEDS (default 20) from SEED (1) on; then the defects that they must find
	$(GO) run ./ib/ibtest/schedule -race -seeds $(or $(SEEDS),20) -seed $(or $(SEED),1) -run '^TestContract$$' -args '-ibtest.load 2' ./driver/loopback
	$(GO) run ./ib/ibtest/schedule -race -seeds $(or $(SEEDS),20) -seed $(or $(SEED),1) -run '^TestContract$$/^(shortcut|wire)$$' ./driver/rxe
	$(GO) run ./ib/ibtest/schedule -race -seeds $(or $(SEEDS),20) -seed $(or $(SEED),1) ./ib
	$(GO) test -count=1 -timeout 1h -v -run '^TestFinds' ./ib/ibtest/schedule -defects

# Those that take longest come last.
WEAK = -weak verbena/driver/loopback,verbena/driver/rxe -seeds $(or $(SEEDS),1000) -seed $(or $(SEED),1)
.PHONY: soak-weak
soak-weak: ## right consumers on the least convenient device (docs/weak.md): SEEDS (default 1000) from SEED (1) on
	$(GO) run ./ib/ibtest/schedule $(WEAK) ./examples/page ./examples/echo ./ib/completion ./ib/attach ./ib/slot
	cd examples/rblk && $(GO) run verbena/ib/ibtest/schedule $(WEAK) .
	$(GO) run ./ib/ibtest/schedule $(WEAK) ./rdmacm ./rdmanet
	$(GO) test -count=1 -timeout 72h -run '^Test(Contract|Model)$$' ./ib/weak -weak.seeds $(or $(SEEDS),1000) -weak.seed $(or $(SEED),1) -ibtest.seeds 1000

.PHONY: soak-reset
soak-reset: build ## resets, unplugs and plugs under load, race detector on; SOAK_RESETS, SOAK_PLUGS, SOAK_TIME bound it
	CGO_ENABLED=1 $(GO) build -race -trimpath -o $(BIN).race ./cmd/verbena
	SOAK_RESETS=$(SOAK_RESETS) SOAK_PLUGS=$(SOAK_PLUGS) CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 24h -v -run TestSoakReset ./uverbs
	SOAK_RESETS=$(SOAK_RESETS) SOAK_PLUGS=$(SOAK_PLUGS) VERBENA=$(CURDIR)/$(BIN) $(GO) test -tags e2e -count=1 -timeout 24h -v -run TestEndure ./test/e2e
	SOAK_RESETS=$(SOAK_RESETS) SOAK_PLUGS=$(SOAK_PLUGS) VERBENA=$(CURDIR)/$(BIN).race $(GO) test -tags e2e -count=1 -timeout 24h -v -run TestEndure ./test/e2e
	SOAK_RESETS=50 SOAK_PLUGS=50 VERBENA=$(CURDIR)/$(BIN) $(GO) test -tags e2e -count=1 -timeout 2h -v -run TestSoakReset ./test/e2e

.PHONY: api-diff
api-diff: tools ## how the public packages differ from those of the git revision BASE (default: the last tag)
	@scripts/api-diff $(BASE)

.PHONY: bench-compare
bench-compare: build ## this tree against the git revision BASE (default main), in alternation
	@scripts/bench-compare $(or $(BASE),main) $(ARGS)

.PHONY: bench-guest
bench-guest: build ## beside the kernel's Soft-RoCE, in a QEMU guest
	@scripts/bench-guest $(ARGS)

.PHONY: vuln
vuln: ## known vulnerabilities in what the code calls, by govulncheck; needs its database (GOVULNDB). Status 1 of make: some are known, or it is not known
	@GO="$(GO)" scripts/vuln

.PHONY: release-test
release-test: ## two equal builds, and the artefacts and recipes in bare Debian 12 and 13; needs root, and takes minutes
	@scripts/deps mmdebstrap rpm
	cd packaging && $(GO) vet ./... && $(GO) test -count=1 ./...
	cd test/release && $(GO) vet ./... && $(GO) test -count=1 -timeout 30m -v ./...
