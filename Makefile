# `make` lists the targets that most changes need. `make help-more` lists the targets of more.mk.
GO ?= go
BIN := bin/verbena
export CGO_ENABLED := 0

.PHONY: help
help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 12

.PHONY: help-more
help-more: ## list the other targets: long runs, records, mutants, releases
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' more.mk | expand -t 20

.PHONY: build
build: ## build bin/verbena
	$(GO) build -trimpath -o $(BIN) ./cmd/verbena

.PHONY: tools
tools: ## build the developer commands of module tools: api, prose, verdict, verbenavet, mutants, staticcheck, stringer
	$(GO) build -C tools -o ../bin/ tool ./api ./prose ./verdict ./verbenavet ./mutants

.PHONY: demo
demo: build ## run an RDMA ping-pong: first between unmodified programs, then in one Go process. Takes less than a minute
	@scripts/demo

.PHONY: test
test: export NO_INSTALL := 1
# The guest of interop-test waits half of its time. Several builds at once must not write the same file.
test: have-deps build tools ## run all checks of a change, and install nothing. FAIL_FAST=1 stops after the first failed stage
	@scripts/stages lint interop-test\& libraries cross wait unit e2e

.PHONY: quick
quick: ## run the checks that need neither root nor packages, with fewer rounds (-short). Takes less than a minute on two cores
	$(GO) vet ./...
	$(GO) test -p 4 -short -vet=off -ldflags=-w -timeout 3m ./...

.PHONY: deps
deps: ## install the packages and the guest kernel that the tests need, if this user has the permission
	@scripts/deps

.PHONY: have-deps
have-deps:
	@NO_INSTALL=1 scripts/deps

.PHONY: lint
lint: tools ## run gofmt, vet, staticcheck, verbenavet (the contract, the import rules) and prose (the language)
	@scripts/lint

.PHONY: cross
# These packages need no other process, no memory fault and no multicast. qemu-user handles these differently from Linux.
ARM64 := ./verbs ./verbs/embed ./engine/transport ./uapi/... ./roce/... ./rdmacm/msg
cross: tools ## compile for arm64 and amd64, and run the tests that work under emulation
	GOARCH=arm64 $(GO) vet ./...
	GOARCH=amd64 $(GO) vet ./...
	if [ "$$($(GO) env GOARCH)" = amd64 ]; then \
		CGO_ENABLED=0 GOARCH=arm64 $(GO) test -json -count=1 -exec qemu-aarch64-static $(ARM64) | bin/verdict; fi

.PHONY: unit
# The race detector is useless for these packages: their tests use one goroutine each, run the suite of ib/ibtest
# against wrong drivers, or simulate what the tests of package engine do with real threads.
PLAIN := /(internal/(explore|layers|notify|simtest|states)|ib/ibtest|reqtrace)$$
# `make lint` has already vetted all packages. Without symbols for debuggers, a test links in half the time.
TESTFLAGS := -vet=off -ldflags=-w
# By default, a program with the race detector sleeps for a second before its exit.
unit: export GORACE := atexit_sleep_ms=0
unit: tools ## run the unit tests with the race detector
	{ CGO_ENABLED=1 $(GO) test -race $(TESTFLAGS) -json -timeout 8m $$($(GO) list ./... | grep -vE '$(PLAIN)'); \
	  $(GO) test $(TESTFLAGS) -json -timeout 8m $$($(GO) list ./... | grep -E '$(PLAIN)'); \
	  CGO_ENABLED=1 $(GO) test -C examples/rblk -race $(TESTFLAGS) -json -timeout 8m ./...; $(GO) test -C tools $(TESTFLAGS) -json -timeout 8m ./...; } | bin/verdict -slowest 40
	$(GO) test $(TESTFLAGS) -run 'Allocates?$$|^(TestMessageCosts|TestRoomForManyUsers|TestAddressHandleLimit|TestLoss|TestTransfer|TestAtomicsTogether|TestSetInterfaceRandom|TestContract|TestModel)$$' \
		./engine ./driver/loopback ./ib/weak ./uverbs
	$(GO) test $(TESTFLAGS) -run 'Allocates?$$' ./ib ./verbs/embed ./rdmanet
	$(GO) test $(TESTFLAGS) -run '^TestLauncherRules$$' ./internal/confine

.PHONY: libraries
libraries: tools ## test net/http, gRPC and other libraries over rdmanet, and the web page in Chromium, in modules of their own
	cd test/rdmanet && $(GO) vet ./... && $(GO) test -count=1 ./...
	cd test/web && $(GO) vet ./...
	$(GO) test -C test/web -count=1 -json -timeout 3m ./... | bin/verdict

.PHONY: e2e
e2e: build tools ## run real programs end to end. DOORBELLS=native selects doorbells that are not trapped
	VERBENA=$(CURDIR)/$(BIN) DOORBELLS=$(DOORBELLS) $(GO) test -json -count=1 -timeout 18m -parallel 3 -tags e2e ./test/e2e/... | bin/verdict -slowest 40

.PHONY: docs
docs: ## regenerate the tables in docs
	UPDATE_DOCS=1 $(GO) test -count=1 ./explain ./internal/confine ./internal/fault ./test/pyverbs ./test/rdmacore ./test/rdmaunit ./uverbs ./internal/layers ./ib/weak ./ib/check ./test/kernels

.PHONY: interop
interop: build tools ## test Verbena with the Soft-RoCE driver of the Linux kernel in QEMU, and write bin/interop.md
	@scripts/interop bin/interop.md

.PHONY: interop-test
interop-test: build tools
	@scripts/interop

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (default 1m)
	@scripts/fuzz

.PHONY: bench
bench: build ## measure performance and the floors of the machine, as in docs/results/benchmarks.md. ARGS=-h lists the flags
	@scripts/bench $(ARGS)

.PHONY: release
release: ## build archives, packages, an image and checksums of VERSION in dist. IMAGE=no omits the image
	cd packaging && $(GO) run ./release -version "$(VERSION)" -image=$(if $(filter no,$(IMAGE)),false,true) -out ../dist

.PHONY: clean
clean: ## remove the files that were built
	rm -rf bin dist

include more.mk
