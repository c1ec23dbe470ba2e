# One list of verbs; the first comment behind a name is its help.

GO       ?= go
TOOL     := $(GO) tool -modfile=.tools.mod
FUZZTIME ?= 5s
HANDOFFS ?= 10000
ROUNDS   ?= 1000
SOAK     ?= 10m
CRASHES  ?= 200
# libpypto-pd is a C library and is not among the plain programs.
PROGRAMS := $(filter-out ./cmd/libpypto-pd,$(patsubst %/main.go,./%,$(wildcard cmd/*/main.go)))
BIN      := bin
comma    := ,
SOURCES  := adapter cgo cmd examples mooncake pd router tests

.DEFAULT_GOAL := help
.PHONY: help demo build lib test nocgo lint fuzz sim model bench gen verify dist e2e-openai conformance-mooncake bench-transfer soak-fleet

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 28

demo: build ## one request through a router, a prefill and a decode node
	bin/pypto-pdctl demo

# pypto-serving loads the native data plane's C libraries, if a node asks for it;
# without a C compiler it is built without, and says so then.
build: ## all programs, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ $(filter-out ./cmd/pypto-serving,$(PROGRAMS))
	$(GO) build -trimpath -o $(BIN)/ ./cmd/pypto-serving

# Only what pd.h declares is visible: a host may load other Go libraries, too.
lib: ## libpypto-pd.so, for servers in other languages, into bin/
	CGO_ENABLED=1 $(GO) build -trimpath -buildmode=c-shared -tags netgo,osusergo$(addprefix $(comma),$(TAGS)) \
		-ldflags='-s -extldflags=-Wl,--version-script=$(CURDIR)/cmd/libpypto-pd/exports.map' -o $(BIN)/libpypto-pd.so ./cmd/libpypto-pd
	@rm -f $(BIN)/libpypto-pd.h

test: ## every test, with the race detector
	$(GO) test -race -timeout 25m ./...

e2e-openai: ## the official OpenAI clients for Python, Node and Go, installed for the run, against a router with its nodes
	$(GO) test -count=1 -timeout 10m ./tests/openai -openai.clients

nocgo: ## build and test without cgo, and build for arm64
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) test -tags stdjson ./pd/strictjson ./pd/config ./pd/wire ./pd/journal
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build ./...

lint: ## gofumpt, go vet and staticcheck, at the versions of .tools.mod
	@files=$$($(TOOL) gofumpt -l $(wildcard $(SOURCES))) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted; run $(TOOL) gofumpt -w on:"; echo "$$files"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

fuzz: ## every fuzz target for FUZZTIME each
	@grep -rE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' $(wildcard $(SOURCES)) | \
	sed -E 's|^(.*)/[^/]*:func (Fuzz[A-Za-z0-9_]*).*|\1 \2|' | sort | \
	while read -r package target; do \
		echo "fuzz $$package $$target"; \
		$(GO) test "./$$package" -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x || exit 1; \
	done

# The commit is part of what a failed simulation prints.
STAMP = $(shell git rev-parse HEAD >/dev/null 2>&1 && echo -buildvcs=true)

sim: ## HANDOFFS simulated handoffs with every kind of fault, and each safety rule switched off once
	$(GO) test $(STAMP) ./tests/sim -run '^TestSim$$' -count=1 -v -timeout 10m -sim.handoffs=$(HANDOFFS)
	$(GO) vet -tags mutants ./pd/mutant ./pd/lease ./pd/node ./tests/sim
	$(GO) test -tags mutants ./tests/sim -run '^(TestEveryRuleIsNeeded|TestShrinkKeepsTheFailure)$$' -count=1 -timeout 10m

model: ## check the model of a handoff with spin: it holds, its mutations fail
	docs/model/check.sh

soak-fleet: ## trouble a fleet of replicas for SOAK under load, and kill its router CRASHES times
	$(GO) test -race -count=1 -timeout 60m ./tests/fleet/soak -v -fleet.soak=$(SOAK) -fleet.crashes=$(CRASHES)

bench: ## every benchmark
	$(GO) test -run '^$$' -bench . -benchmem ./...

conformance-mooncake: ## the data plane over the library PYPTO_MOONCAKE_LIBRARY names, then ROUNDS of every fault, with the race detector
	@test -n "$$PYPTO_MOONCAKE_LIBRARY" || { echo "set PYPTO_MOONCAKE_LIBRARY to a libtransfer_engine.so (and PYPTO_MOONCAKE_INCLUDE to its headers)"; exit 2; }
	$(GO) test -race -count=1 -timeout 20m ./cgo/... ./mooncake ./tests/conformance/abi
	$(GO) test -race -count=1 ./mooncake -run '^TestIPv6$$' -mooncake.ipv6
	$(GO) test -race -count=1 -timeout 20m ./tests/e2e -run '^TestTextThroughTheTransferEngineEqualsTheCombinedText$$'
	$(GO) test -race -count=1 -timeout 4h ./mooncake -run '^TestFaults$$' -mooncake.rounds=$(ROUNDS)

bench-transfer: ## throughput through Go against that of C over the same library, and the cost of Go per segment
	$(GO) test -count=1 -timeout 20m ./mooncake -run '^TestThroughputIsThatOfC$$' -mooncake.bench 9
	$(GO) test -run '^$$' -bench 'Lower|SubmitAndPoll' ./mooncake ./cgo/te

gen: ## rewrite golden files and generated documents
	$(GO) test ./tests/conformance -update

verify: gen ## gen, and nothing may differ from what is committed
	@changed=$$(git status --porcelain) || exit 1; \
	if [ -n "$$changed" ]; then echo "not committed, or not generated:"; echo "$$changed"; git --no-pager diff; exit 1; fi

# The architecture of this machine gets what needs its C compiler, too.
dist: ## programs for both architectures, packed with checksums in dist/
	@rm -rf dist && mkdir -p dist
	for arch in amd64 arm64; do \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -ldflags=-s -o dist/pypto-pd-linux-$$arch/ $(PROGRAMS) || exit 1; \
		if [ $$arch = "$$($(GO) env GOHOSTARCH)" ]; then \
			$(GO) build -trimpath -ldflags=-s -o dist/pypto-pd-linux-$$arch/ ./cmd/pypto-serving && \
			$(MAKE) --no-print-directory lib BIN=dist/pypto-pd-linux-$$arch && cp -r include dist/pypto-pd-linux-$$arch/ || exit 1; \
		fi; \
		cp LICENSE examples/pd.json examples/fleet.json dist/pypto-pd-linux-$$arch/ && \
		tar -C dist -czf dist/pypto-pd-linux-$$arch.tar.gz pypto-pd-linux-$$arch || exit 1; \
	done
	cd dist && sha256sum *.tar.gz > SHA256SUMS
