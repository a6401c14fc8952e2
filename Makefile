# Images that the operator's and the proxy's container come from.
IMG ?= egress-operator:latest
PROXY_IMG ?= egress-proxy:latest
CONTAINER_TOOL ?= docker
KUBECTL ?= kubectl


# Nothing of the product links C. One setting for builds, tests and linters also
# keeps them from compiling everything twice.
export CGO_ENABLED = 0

SHELL = /usr/bin/env bash -o pipefail
.SHELLFLAGS = -ec

LOCALBIN := $(CURDIR)/bin
TOOLS := $(LOCALBIN)/tools
CONTROLLER_GEN := $(TOOLS)/controller-gen
CRD_REF_DOCS := $(TOOLS)/crd-ref-docs
GOLANGCI_LINT := $(TOOLS)/golangci-lint

.PHONY: all
all: build

##@ General

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN {FS = ":.*##"; printf "\nUsage:\n  make \033[36m<target>\033[0m\n"} /^[a-zA-Z_0-9-]+:.*?##/ { printf "  \033[36m%-15s\033[0m %s\n", $$1, $$2 } /^##@/ { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } ' $(MAKEFILE_LIST)

##@ Try it (Linux, root)

.PHONY: demo
demo: ## Bring up a cluster, a tailnet and the operator; carry traffic; remove everything.
	@hack/preflight.sh demo
	go run ./test/demo run

.PHONY: demo-up
demo-up: ## The same, and leave it running; prints how to use it.
	@hack/preflight.sh demo-up
	go run ./test/demo up

.PHONY: demo-down
demo-down: ## End what demo-up left running.
	go run ./test/demo down

##@ Development

.PHONY: test
test: test-unit test-e2e ## Run every test; what needs root is skipped, loudly, for others.

# Packages whose tests measure time or share the machine's network run one after
# the other.
.PHONY: test-unit
test-unit: ## Run the tests of every package: pure, golden, fuzz seeds, API server, kernel, testbed.
	@assets="$$(go run ./test/assets)"; export KUBEBUILDER_ASSETS="$$assets"; \
	go test -timeout 20m $$(go list ./... | grep -v -e /internal/proxy -e /test/); \
	go test -timeout 20m -p 1 $$(go list ./internal/proxy/... ./test/... | grep -v /test/e2e)

.PHONY: test-e2e
test-e2e: ## Run the product on a real cluster and a real tailnet (root).
	go test -timeout 40m -v -count=1 ./test/e2e -ginkgo.v -ginkgo.no-color

.PHONY: verify
verify: generate ## Regenerate everything and fail where the tree is not what comes out.
	go mod tidy -diff
	cd hack/tools && go mod tidy -diff
	@test -z "$$(gofmt -l api cmd internal test hack)" || { gofmt -l api cmd internal test hack; echo "not gofmt'ed"; exit 1; }
	@changes="$$(git status --porcelain -- api config docs)"; test -z "$$changes" || { \
		echo "$$changes"; git --no-pager diff -- api config docs | head -100; \
		echo "generated files are not up to date: commit what 'make generate' changed"; exit 1; }

.PHONY: generate
generate: manifests $(CONTROLLER_GEN) $(CRD_REF_DOCS) ## Regenerate deep copies, manifests, apply configurations and the API reference.
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths="./api/..."
	$(CRD_REF_DOCS) --source-path=api/v1alpha1 --config=hack/crd-ref-docs.yaml --renderer=markdown --output-path=docs/api.md

.PHONY: manifests
manifests: $(CONTROLLER_GEN) ## Regenerate CRDs, RBAC, webhook configurations and apply configurations.
	$(CONTROLLER_GEN) rbac:roleName=manager-role crd webhook applyconfiguration:headerFile=hack/boilerplate.go.txt \
		paths="./api/..." paths="./internal/..." output:crd:artifacts:config=config/crd/bases

.PHONY: fmt
fmt: ## Format the code.
	gofmt -w api cmd internal test hack

.PHONY: vet
vet: ## Run go vet.
	go vet ./...

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run the linters, which also hold the import walls.
	$(GOLANGCI_LINT) run

.PHONY: lint-fix
lint-fix: $(GOLANGCI_LINT) ## Run the linters and let them fix what they can.
	$(GOLANGCI_LINT) run --fix

.PHONY: bench
bench: ## Compare the proxy's rules with today's code, side by side (root); writes bin/bench.json.
	go run ./test/bench -json bin/bench.json

##@ Build

.PHONY: build
build: ## Build the operator and the proxy into bin/.
	go build -trimpath -o $(LOCALBIN)/manager ./cmd
	go build -trimpath -o $(LOCALBIN)/egress-proxy ./cmd/proxy

.PHONY: docker-build
docker-build: ## Build both images.
	$(CONTAINER_TOOL) build --target operator -t $(IMG) .
	$(CONTAINER_TOOL) build --target proxy -t $(PROXY_IMG) .

.PHONY: docker-push
docker-push: ## Push both images.
	$(CONTAINER_TOOL) push $(IMG)
	$(CONTAINER_TOOL) push $(PROXY_IMG)

##@ Deployment

.PHONY: install
install: ## Install the CRDs into the current cluster.
	$(KUBECTL) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: ## Remove the CRDs, and with them every EgressTarget, from the current cluster.
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: ## Install the operator into the current cluster, with the images IMG and PROXY_IMG.
	@dir="$$(mktemp -d ./config/.deploy-XXXXXX)"; trap 'rm -rf "$$dir"' EXIT; \
	printf 'resources: [../default]\nimages:\n- {name: controller, newName: "%s", newTag: "%s"}\nconfigMapGenerator:\n- {name: settings, behavior: merge, literals: ["PROXY_IMAGE=%s"]}\n' \
		"$(IMG:%:$(lastword $(subst :, ,$(IMG)))=%)" "$(lastword $(subst :, ,$(IMG)))" "$(PROXY_IMG)" > "$$dir/kustomization.yaml"; \
	$(KUBECTL) apply --server-side -k "$$dir"

.PHONY: undeploy
undeploy: ## Remove the operator from the current cluster; delete the EgressTargets first.
	$(KUBECTL) delete --ignore-not-found -k config/default

# Tools, built from the versions that hack/tools/go.mod pins.
$(CONTROLLER_GEN): hack/tools/go.mod
	cd hack/tools && go build -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen
$(CRD_REF_DOCS): hack/tools/go.mod
	cd hack/tools && go build -o $@ github.com/elastic/crd-ref-docs
$(GOLANGCI_LINT): hack/tools/go.mod hack/tools/golangci-lint/main.go
	@echo "building golangci-lint with its plugins (some minutes the first time)"
	cd hack/tools && go build -o $@ ./golangci-lint
