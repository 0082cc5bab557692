# The gateway alone: one static binary on an empty base, run by a user without rights.
#
#   docker build -t vectorgate .
#   docker run --read-only --tmpfs /tmp -v data:/data -p 8080:8080 -p 8081:8081 \
#       -v ./gateway.toml:/etc/vectorgate/gateway.toml:ro -e VECTORGATE_ADMIN_TOKEN vectorgate
#
# It listens on every address of the container, so it wants an admin token and tenants of your own; without them it says
# so and ends. Only the dependencies' layer is built anew when Cargo.lock changes.

FROM rust:1.95-alpine AS build
# A C compiler for the parts of dependencies that are C (compression, allocator, cryptography).
RUN apk add --no-cache build-base
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY loadtest/Cargo.toml loadtest/
# Dependencies first, against empty sources, so that a change of ours does not build them again.
RUN mkdir -p src loadtest/src tests benches \
    && echo 'fn main() {}' > src/main.rs && cp src/main.rs loadtest/src/ && cp src/main.rs benches/hot_path.rs \
    && touch src/lib.rs loadtest/src/lib.rs tests/main.rs \
    && cargo build --release --locked --bin vectorgate \
    && rm -rf src loadtest/src
COPY src src
COPY config config
COPY loadtest loadtest
# Cargo goes by the time of a file, and those of the context are older than the empty ones were. Line tables, which a
# build has for profiles of it, are more than half of the program and of no use in an image.
RUN find src loadtest -name '*.rs' -exec touch {} + \
    && cargo build --release --locked --bin vectorgate \
    && strip target/release/vectorgate \
    && target/release/vectorgate --version
RUN mkdir -p /image/etc/ssl/certs /image/etc/vectorgate /image/data /image/tmp /image/usr/local/bin \
    && cp target/release/vectorgate /image/usr/local/bin/ \
    && cp config/gateway.toml /image/etc/vectorgate/ \
    && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
    && chmod 1777 /image/tmp && chown 65532:65532 /image/data

FROM scratch
LABEL org.opencontainers.image.title="Vectorgate" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image /
USER 65532:65532
WORKDIR /data
ENV VECTORGATE_SERVER__LISTEN=0.0.0.0:8080 \
    VECTORGATE_SERVER__ADMIN_LISTEN=0.0.0.0:8081 \
    VECTORGATE_STORE__PATH=/data \
    VECTORGATE_LOG_FORMAT=json
EXPOSE 8080 8081
VOLUME /data
# No shell and no curl in here: the gateway asks itself.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
    CMD ["/usr/local/bin/vectorgate", "health", "--address", "127.0.0.1:8081"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/vectorgate"]
CMD ["serve", "--config", "/etc/vectorgate/gateway.toml"]
