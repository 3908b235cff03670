# `make` lists the targets that most changes need; `make help-more` lists those of more.mk.
GO ?= go
BIN := bin/verbena
export CGO_ENABLED := 0

.PHONY: help
help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 12

.PHONY: help-more
help-more: ## list the others: long runs, records, mutants, releases
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' more.mk | expand -t 20

.PHONY: build
build: ## build bin/verbena
	$(GO) build -trimpath -o $(BIN) ./cmd/verbena

.PHONY: tools
tools: ## build the commands for developers (module tools): api, prose, verdict, verbenavet, mutants, staticcheck, stringer
	$(GO) build -C tools -o ../bin/ tool ./api ./prose ./verdict ./verbenavet ./mutants

.PHONY: demo
demo: build ## an RDMA ping-pong in under a minute: unmodified programs, then the Go stack in one process
	@scripts/demo

.PHONY: test
test: export NO_INSTALL := 1
test: have-deps ## everything that a change must pass; installs nothing. FAIL_FAST=1 ends after the first stage that fails
	@scripts/stages lint unit libraries cross e2e interop-test

.PHONY: quick
quick: ## what can be tested in a minute, without root and packages: fewer rounds, the long tests left out (-short)
	$(GO) vet ./...
	$(GO) test -short -vet=off -ldflags=-w -timeout 3m ./...

.PHONY: deps
deps: ## install what the tests need (Debian packages, the guest's kernel), as far as this user may
	@scripts/deps

.PHONY: have-deps
have-deps:
	@NO_INSTALL=1 scripts/deps

.PHONY: lint
lint: tools ## gofmt, vet, staticcheck, the contract (verbenavet), the rules of imports and of language (prose)
	@scripts/lint

.PHONY: cross
# What needs no other process, no memory fault and no multicast, which qemu-user does not know as Linux does.
ARM64 := ./verbs ./verbs/embed ./driver/rxe/transport ./uapi/... ./roce/... ./rdmacm/msg
cross: tools ## compile for the other architecture, and run what runs emulated
	GOARCH=arm64 $(GO) vet ./...
	GOARCH=amd64 $(GO) vet ./...
	if [ "$$($(GO) env GOARCH)" = amd64 ]; then \
		CGO_ENABLED=0 GOARCH=arm64 $(GO) test -json -count=1 -exec qemu-aarch64-static $(ARM64) | bin/verdict; fi

.PHONY: unit
# Their tests compute, on one goroutine each, or run the suite of ib/ibtest against drivers that are wrong. Lint has vetted all.
PLAIN := /(internal/(explore|layers|notify|states)|ib/ibtest)$$
# The race detector's runtime keeps each program for a second after its end.
unit: export GORACE := atexit_sleep_ms=0
unit: tools ## unit tests with the race detector
	{ CGO_ENABLED=1 $(GO) test -race -vet=off -json -timeout 8m $$($(GO) list ./... | grep -vE '$(PLAIN)'); \
	  $(GO) test -vet=off -json -timeout 8m $$($(GO) list ./... | grep -E '$(PLAIN)'); \
	  CGO_ENABLED=1 $(GO) test -C examples/rblk -race -vet=off -json -timeout 8m ./...; $(GO) test -C tools -vet=off -json -timeout 8m ./...; } | bin/verdict -slowest 40
	$(GO) test -vet=off -run '^(TestDataPathAllocates|TestMessageCosts|TestCompletionEventDoesNotAllocate|TestRoomForManyUsers|TestAddressHandleLimit|TestLoss|TestTransfer|TestAtomicsTogether|TestSetInterfaceRandom|TestContract|TestModel)$$' \
		./driver/rxe ./driver/loopback ./ib/weak ./uverbs
	$(GO) test -vet=off -run '^Test(Allocations|WaitAllocates|DataPathAllocates)$$' ./verbs/embed ./rdmanet
	$(GO) test -vet=off -run '^TestSchedules$$' ./driver/rxe/internal/simtest
	$(GO) test -vet=off -run '^TestLauncherRules$$' ./internal/confine

.PHONY: libraries
libraries: ## net/http, gRPC and others over rdmanet: a module of its own, with their dependencies
	cd test/rdmanet && $(GO) vet ./... && $(GO) test -count=1 ./...

.PHONY: e2e
e2e: build tools ## the real programs, end to end; DOORBELLS=native: with doorbells that are not trapped
	VERBENA=$(CURDIR)/$(BIN) DOORBELLS=$(DOORBELLS) $(GO) test -json -count=1 -timeout 18m -parallel 3 -tags e2e ./test/e2e/... | bin/verdict -slowest 40

.PHONY: docs
docs: ## make the tables in docs anew
	UPDATE_DOCS=1 $(GO) test -count=1 ./internal/confine ./internal/fault ./test/pyverbs ./test/rdmacore ./uverbs ./internal/layers ./ib/weak ./test/kernels

.PHONY: interop
interop: build tools ## run against the Linux kernel's Soft-RoCE, in QEMU; the report is bin/interop.md
	@scripts/interop bin/interop.md

.PHONY: interop-test
interop-test: build tools
	@scripts/interop

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (default 1m)
	@scripts/fuzz

.PHONY: bench
bench: build ## the figures of docs/results/benchmarks.md, beside the machine's floors; ARGS, such as -short, go to test/bench (-h)
	@scripts/bench $(ARGS)

.PHONY: release
release: ## the artefacts of VERSION in dist: archives, packages, an image, checksums; IMAGE=no leaves out the image
	cd packaging && $(GO) run ./release -version "$(VERSION)" -image=$(if $(filter no,$(IMAGE)),false,true) -out ../dist

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist

include more.mk
