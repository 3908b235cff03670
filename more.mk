# Targets for long runs, records of other programs, mutants and releases. The Makefile includes this file.
# `make help-more` lists the targets.

.PHONY: attack
attack: build tools ## run the attacks of one user on other users and on the service, with full counts
	VERBENA=$(CURDIR)/$(BIN) ATTACK_FULL=1 $(GO) test -json -count=1 -timeout 3h -tags e2e -run '^TestAttack' ./test/e2e | bin/verdict -v

.PHONY: abi
abi: ## record the results of system calls on the files of the kernel's rxe, in QEMU (test/abi)
	@scripts/deps ibverbs-utils ibverbs-providers python3 gcc libc6-dev libibverbs-dev librdmacm-dev && test/interop/guest/build -q
	test/abi/record

.PHONY: yama
yama: build ## run the tests with a restricted ptrace (Yama), on Debian's kernel in QEMU
	@scripts/deps ibverbs-utils ibverbs-providers && test/interop/guest/build -q
	VERBENA=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 15m -v -tags interop ./test/yama

.PHONY: verb-faults
verb-faults: build ## fail each call of each verb of well-known programs, and record the reactions. PROGRAMS is a pattern
	@scripts/deps ibverbs-utils ibverbs-providers perftest rdmacm-utils qperf ucx-utils libfabric-bin
	VERBENA=$(CURDIR)/$(BIN) VERB_FAULTS='$(or $(PROGRAMS),.)' $(GO) test -count=1 -timeout 2h -parallel 6 -v -tags e2e -run '^TestVerbFaults$$' ./test/e2e

.PHONY: kernels
kernels: build ## run programs on the kernels of Debian's releases in QEMU, and record the results. SUITES selects releases, without a record
	@scripts/deps ibverbs-utils ibverbs-providers perftest rdmacm-utils
	VERBENA=$(CURDIR)/$(BIN) SUITES="$(SUITES)" $(GO) test -count=1 -timeout 1h -v -tags interop -run '^TestKernels$$' ./test/kernels

.PHONY: upgrade-test
upgrade-test: build ## run commands of the git revisions OLD with the service of this tree, and the reverse. Default: two early revisions
	VERBENA=$(CURDIR)/$(BIN) OLD="$(OLD)" $(GO) test -count=1 -timeout 10m -v -tags upgrade ./test/upgrade

.PHONY: soak-failover
soak-failover: build ## run each scenario of examples/failover FAILOVER times (default 100): correct, with faulty programs, without the fault
	VERBENA=$(CURDIR)/$(BIN) FAILOVER=$${FAILOVER:-100} $(GO) test -count=1 -timeout 3h -parallel 2 -tags e2e -v -run '^TestFailover$$' ./test/e2e

.PHONY: soak-kill
soak-kill: build ## kill programs at random moments in ROUNDS rounds (default 10000). SEED repeats one round
	VERBENA=$(CURDIR)/$(BIN) ROUNDS=$(or $(ROUNDS),10000) $(GO) test -count=1 -timeout 12h -v -tags e2e -run '^TestKillSoak$$' ./test/e2e

.PHONY: soak-users
soak-users: build ## stop or kill programs and launchers of two users at random moments in ROUNDS rounds (default 1000)
	VERBENA=$(CURDIR)/$(BIN) ROUNDS=$(or $(ROUNDS),1000) $(GO) test -count=1 -timeout 12h -v -tags e2e -run '^TestSoakUsers$$' ./test/e2e

.PHONY: soak-wakeups
soak-wakeups: ## post at random moments, around the sleep of the service's poller, for WAKEUPS (default 3m20s) per number of queue pairs
	WAKEUPS=$(or $(WAKEUPS),3m20s) $(GO) test -count=1 -timeout 2h -v -run '^TestWakeups$$' ./verbs/service

.PHONY: soak-connections
soak-connections: build ## set up and tear down 1000 concurrent connections in ROUNDS rounds (default 10), with 2 % packet loss
	VERBENA=$(CURDIR)/$(BIN) ROUNDS=$(or $(ROUNDS),10) $(GO) test -count=1 -timeout 2h -v -tags e2e -run '^TestManyConnections$$' ./test/e2e

.PHONY: soak-cm
soak-cm: ## run SCHEDULES random schedules (default 10000) of the connection manager on virtual time, from SEED (default 1) on
	$(GO) test -count=1 -timeout 12h -v -run '^TestSchedules$$' ./rdmacm -schedules $(or $(SCHEDULES),10000) -seed $(or $(SEED),1)

.PHONY: soak-cm-kernel
soak-cm-kernel: build tools ## compare WALKS random sequences (default 10000) of librdmacm's calls with Linux in QEMU, from WALK_FIRST (default 1) on
	WALKS=$(or $(WALKS),10000) INTEROP_RUN='^TestInterop$$/^walks$$' scripts/interop

.PHONY: shapes
shapes: build tools ## measure the rates and delays of link set, and of tc with the kernel's rxe
	SHAPES=1 INTEROP_RUN='^TestInterop$$/^shapes$$' scripts/interop

.PHONY: soak-transport
soak-transport: ## run SCHEDULES random schedules (default 10000) of each transport service on virtual time, from FIRST (default 1) on
	$(GO) test -count=1 -timeout 12h -v -run '^TestSchedules$$' ./engine/internal/simtest -schedules $(or $(SCHEDULES),10000) -first $(or $(FIRST),1)

.PHONY: soak-travel
soak-travel: ## run SCHEDULES schedules (default 10000) of each service over the shortcut, as packets and alternating, and compare the results
	$(GO) test -count=1 -timeout 12h -v -run '^TestTravel$$' ./engine/internal/simtest -travels $(or $(SCHEDULES),10000) -first $(or $(FIRST),1)

.PHONY: flood
flood: ## measure the throughput of one process while another process floods the device with packets for some seconds
	$(GO) test -count=1 -timeout 5m -v -run '^TestFlood$$' ./engine -flood

.PHONY: mutants
mutants: tools ## insert one defect at a time into the code, and check that the tests detect it
	$(GO) test -count=1 -timeout 2h -v -run '^TestMutants$$' ./engine/internal/simtest -mutants
	bin/mutants
	bin/mutants -generated
	$(GO) test -C tools -count=1 -timeout 20m -v -run '^Test(Drivers|Consumers)$$' ./wrong -wrong
	$(GO) test -count=1 -timeout 20m -v -run '^TestWrongDrivers$$' ./ib/ibtest -whole

.PHONY: mutants-drivers
mutants-drivers: tools ## insert defects into the drivers for 30 minutes, and check that the contract suite detects them. ARGS="-run ^engine" selects packages
	bin/mutants -drivers -budget 30m $(or $(ARGS),-sample 100 -seed $$(date +%s))

.PHONY: mutants-generated
mutants-generated: tools ## insert generated defects into the packages that isolate users for 30 minutes. ARGS="-run ^umem" replaces the random sample
	bin/mutants -generated -budget 30m $(or $(ARGS),-sample 100 -seed $$(date +%s))

.PHONY: pyverbs
pyverbs: build ## run rdma-core's own tests, and print one line for each. ARGS are flags of the runner (-h lists them)
	@scripts/deps python3-pyverbs rdma-core ibverbs-providers
	@$(BIN) run --private -- test/pyverbs/run $(ARGS) rxe0 1 1

.PHONY: ucx-failover
ucx-failover: build ## run UCX's own test of fault tolerance on three devices. UCX is a built source tree
	@VERBENA=$(CURDIR)/$(BIN) recipes/jobs/ucx-failover.sh $(UCX)

.PHONY: ucx-srd
ucx-srd: build ## run ucx_perftest over SRD on an EFA device. UCX is a built source tree. LOSS=1% loses and reorders packets
	@VERBENA=$(CURDIR)/$(BIN) LOSS=$(LOSS) recipes/jobs/ucx-srd.sh $(UCX)

.PHONY: ucx-srd-gtest
ucx-srd-gtest: build ## run the tests of UCX's gtest over SRD on an EFA device. UCX is a built source tree
	@VERBENA=$(CURDIR)/$(BIN) recipes/jobs/ucx-srd-gtest.sh $(UCX)

.PHONY: efa-fabtests
efa-fabtests: build ## run fabtests over EFA. FABTESTS is the installation folder of libfabric and its fabtests. LOSS=1% loses and reorders packets
	@VERBENA=$(CURDIR)/$(BIN) LOSS=$(LOSS) recipes/jobs/efa-fabtests.sh $(FABTESTS)

.PHONY: efa-adversity
efa-adversity: build ## run libfabric's programs over EFA with loss, a dead peer and resets. FABTESTS is the installation folder of libfabric and its fabtests
	@VERBENA=$(CURDIR)/$(BIN) recipes/jobs/efa-adversity.sh $(FABTESTS)

.PHONY: efa-unit-tests
efa-unit-tests: build ## run the unit tests of libfabric's efa provider with real functions. LIBFABRIC is a source tree built with --enable-efa-unit-test
	@VERBENA=$(CURDIR)/$(BIN) recipes/jobs/efa-unit-tests.sh $(LIBFABRIC)

.PHONY: valkey-rdma
valkey-rdma: build ## run valkey's own test of RDMA. VALKEY is a source tree built with BUILD_RDMA=module
	@VERBENA=$(CURDIR)/$(BIN) recipes/jobs/valkey.sh $(VALKEY)

.PHONY: rdma-core
rdma-core: build ## record the results of several versions of rdma-core on Verbena and on the kernel's rxe. ARGS=-h lists the flags
	@scripts/deps mmdebstrap
	@test/rdmacore/record $(ARGS)

.PHONY: rdma-unit-test
rdma-unit-test: build ## build google/rdma-unit-test, and record its results. TESTS are patterns of gtest, whose results are only printed
	@scripts/deps g++ make git libgtest-dev libgmock-dev libibverbs-dev ibverbs-providers
	@test/rdmaunit/record $(TESTS)

.PHONY: docs-session
docs-session: build ## regenerate the picture of a session in the README
	PATH="$(CURDIR)/bin:$$PATH" $(GO) run ./test/session < docs/session.txt > docs/session.tmp && mv docs/session.tmp docs/session.svg

.PHONY: docs-interop
docs-interop: build tools ## run make interop, and regenerate docs/results/interop.md
	@scripts/interop docs/results/interop.md

SOAK_RESETS ?= 10000
SOAK_PLUGS ?= 10000

RUNS ?= 200
CONCURRENCY = (Reentrant|Callback|HotPlug|SRQ|Sleep|DeviceError)
.PHONY: soak-programs
soak-programs: build tools ## run standard programs with further flags of verbena run. RUN_FLAGS=--sanitize (the default) looks for false reports
	VERBENA=$(CURDIR)/$(BIN) RUN_FLAGS='$(or $(RUN_FLAGS),--sanitize)' $(GO) test -json -count=1 -timeout 3h -parallel 3 -tags e2e \
		-run '^Test(PingpongRC|PingpongGIDs|SRQPrograms|Perftest|CMPrograms|CMProgramsOfTwoServices|Libfabric|Tools|EFAPrograms)$$' ./test/e2e | bin/verdict -v

.PHONY: soak-contract
soak-contract: ## run the concurrency tests of the contract RUNS times (default 200) with the race detector, and all tests 5 x RUNS times without
	CGO_ENABLED=1 $(GO) test -race -count=$(RUNS) -timeout 24h ./ib
	CGO_ENABLED=1 $(GO) test -race -count=$(RUNS) -timeout 24h -run 'TestContract/$(CONCURRENCY)' ./driver/loopback
	CGO_ENABLED=1 $(GO) test -race -count=$(RUNS) -timeout 24h -run 'TestContract/^(shortcut|wire)$$/$(CONCURRENCY)|TestConcurrent|TestDestroyUnderLoad' ./engine
	$(GO) test -count=$$((5 * $(RUNS))) -timeout 24h -run TestContract ./driver/loopback
	$(GO) test -count=$$((5 * $(RUNS) / 2)) -timeout 24h -run 'TestContract/^(shortcut|wire)$$' ./engine

.PHONY: soak-schedules
soak-schedules: ## run the contract suite with random pauses at locks and the race detector, for SEEDS seeds (default 20) from SEED (default 1); then with defects
	$(GO) run ./ib/ibtest/schedule -race -seeds $(or $(SEEDS),20) -seed $(or $(SEED),1) -run '^TestContract$$' -args '-ibtest.load 2' ./driver/loopback
	$(GO) run ./ib/ibtest/schedule -race -seeds $(or $(SEEDS),20) -seed $(or $(SEED),1) -run '^TestContract$$/^(shortcut|wire)$$' ./engine
	$(GO) run ./ib/ibtest/schedule -race -seeds $(or $(SEEDS),20) -seed $(or $(SEED),1) ./ib
	$(GO) test -count=1 -timeout 1h -v -run '^TestFinds' ./ib/ibtest/schedule -defects

# The packages that take longest come last.
WEAK = -weak verbena/driver/loopback,verbena/driver/rxe -seeds $(or $(SEEDS),1000) -seed $(or $(SEED),1)
.PHONY: soak-weak
soak-weak: ## run correct consumers on the least convenient device (docs/weak.md), for SEEDS seeds (default 1000) from SEED (default 1)
	$(GO) run ./ib/ibtest/schedule $(WEAK) ./examples/page ./examples/echo ./ib/completion ./ib/attach ./ib/slot
	cd examples/rblk && $(GO) run verbena/ib/ibtest/schedule $(WEAK) .
	$(GO) run ./ib/ibtest/schedule $(WEAK) ./rdmacm ./rdmanet
	$(GO) test -count=1 -timeout 72h -run '^Test(Contract|Model)$$' ./ib/weak -weak.seeds $(or $(SEEDS),1000) -weak.seed $(or $(SEED),1) -ibtest.seeds 1000

.PHONY: soak-reset
soak-reset: build ## reset, unplug and plug devices under load, with and without the race detector. SOAK_RESETS, SOAK_PLUGS and SOAK_TIME limit the run
	CGO_ENABLED=1 $(GO) build -race -trimpath -o $(BIN).race ./cmd/verbena
	SOAK_RESETS=$(SOAK_RESETS) SOAK_PLUGS=$(SOAK_PLUGS) CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 24h -v -run TestSoakReset ./uverbs
	SOAK_RESETS=$(SOAK_RESETS) SOAK_PLUGS=$(SOAK_PLUGS) VERBENA=$(CURDIR)/$(BIN) $(GO) test -tags e2e -count=1 -timeout 24h -v -run TestEndure ./test/e2e
	SOAK_RESETS=$(SOAK_RESETS) SOAK_PLUGS=$(SOAK_PLUGS) VERBENA=$(CURDIR)/$(BIN).race $(GO) test -tags e2e -count=1 -timeout 24h -v -run TestEndure ./test/e2e
	SOAK_RESETS=50 SOAK_PLUGS=50 VERBENA=$(CURDIR)/$(BIN) $(GO) test -tags e2e -count=1 -timeout 2h -v -run TestSoakReset ./test/e2e

.PHONY: api-diff
api-diff: tools ## print the changes of the public packages since the git revision BASE (default: the last tag)
	@scripts/api-diff $(BASE)

.PHONY: bench-compare
bench-compare: build ## compare the performance with the git revision BASE (default main), in alternating runs
	@scripts/bench-compare $(or $(BASE),main) $(ARGS)

.PHONY: bench-guest
bench-guest: build ## compare the performance with the kernel's Soft-RoCE, in a QEMU guest
	@scripts/bench-guest $(ARGS)

.PHONY: vuln
vuln: ## report known vulnerabilities in the called code (govulncheck). GOVULNDB is the URL of the database
	@GO="$(GO)" scripts/vuln

.PHONY: release-test
release-test: ## check that two builds are equal, and test artefacts and recipes in bare Debian 12 and 13. Needs root. Takes minutes
	@scripts/deps mmdebstrap rpm
	cd packaging && $(GO) vet ./... && $(GO) test -count=1 ./...
	cd test/release && $(GO) vet ./... && $(GO) test -count=1 -timeout 30m -v ./...
