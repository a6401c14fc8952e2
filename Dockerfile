# Two images from one build: `--target operator` and `--target proxy`.
# The base images are arguments, so that they can come from any registry.
ARG BUILD_IMAGE=docker.io/library/golang:1.26
ARG OPERATOR_BASE_IMAGE=gcr.io/distroless/static:nonroot
ARG PROXY_BASE_IMAGE=gcr.io/distroless/static:latest

FROM --platform=${BUILDPLATFORM:-linux/amd64} ${BUILD_IMAGE} AS build
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
# The modules come first, so that a change of source does not fetch them again.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ENV CGO_ENABLED=0 GOOS=${TARGETOS:-linux} GOARCH=${TARGETARCH}
RUN mkdir /out && \
    go build -trimpath -ldflags="-s -w" -o /out/manager ./cmd && \
    go build -trimpath -ldflags="-s -w" -o /out/egress-proxy ./cmd/proxy && \
    go build -trimpath -ldflags="-s -w" -o /out/tailscaled tailscale.com/cmd/tailscaled

FROM ${OPERATOR_BASE_IMAGE} AS operator
COPY --from=build /out/manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]

# The proxy's containers run as root with the few capabilities that its Pod
# lists: a capability needs root, or a file attribute that images lose.
FROM ${PROXY_BASE_IMAGE} AS proxy
COPY --from=build /out/tailscaled /usr/local/bin/tailscaled
COPY --from=build /out/egress-proxy /usr/local/bin/egress-proxy
USER 0:0
ENTRYPOINT ["/usr/local/bin/egress-proxy"]
