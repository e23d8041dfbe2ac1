# A container image of the binary and what it needs, and nothing else: no shell, no package manager, not root.
#   docker build -t meridian --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .
# How to run it is in docs/operations.md.

ARG RUST_VERSION=1.95
FROM rust:${RUST_VERSION}-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev binutils && rm -rf /var/lib/apt/lists/*
WORKDIR /meridian
COPY . .
ARG COMMIT=unknown
ENV MERIDIAN_COMMIT=${COMMIT}
RUN cargo xtask dist --rootfs /rootfs && mkdir /data

FROM scratch
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="Meridian" \
      org.opencontainers.image.description="MQTT broker" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${COMMIT}"
# Owned by the node, and so is a new volume there. It must not exist yet: COPY leaves a directory that exists as it is.
COPY --from=build --chown=10001:10001 /data /data
COPY --from=build /rootfs /

USER 10001:10001
WORKDIR /data
VOLUME /data
# MQTT; HTTP API, metrics and dashboard.
EXPOSE 1883 18083
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 CMD ["/usr/bin/meridian", "ctl", "health"]
ENTRYPOINT ["/usr/bin/meridian"]
CMD ["start", "--config", "/etc/meridian/meridian.toml", "--data-dir", "/data"]
