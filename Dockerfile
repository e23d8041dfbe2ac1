# Container image with only the binary and the files that it needs: no shell, no package manager, no root user.
#   docker build -t meridian --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .
# docs/operations.md describes how to run it. `cargo xtask dist` makes the same image; a check compares both.

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
# The user of the node owns /data, and new volumes there. /data must not exist before: COPY does not change the owner then.
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
