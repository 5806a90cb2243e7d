FROM rust:1-slim-bookworm AS build
# For the allocator, which is written in C.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src ./src
# The manifest names tests and benchmarks; for building the program, empty ones will do.
RUN for unused in tests/it/main.rs benches/hot.rs benches/peers/load.rs; do \
        mkdir -p "${unused%/*}" && echo 'fn main() {}' > "$unused"; \
    done \
    && cargo build --release --locked \
    && strip target/release/tidegate
COPY proxy.toml ./
# In a container the proxy listens for others, and the health check needs the admin endpoint.
RUN sed -i -e 's/^#listen = "127.0.0.1:8080"/listen = "0.0.0.0:8080"/' \
        -e 's/^#listen = "127.0.0.1:9090"/listen = "127.0.0.1:9090"/' proxy.toml \
    && target/release/tidegate check

FROM debian:bookworm-slim
RUN useradd --system --no-create-home --shell /usr/sbin/nologin tidegate
COPY --from=build /src/target/release/tidegate /usr/local/bin/tidegate
COPY --from=build /src/proxy.toml /etc/tidegate/proxy.toml
WORKDIR /etc/tidegate
USER tidegate
EXPOSE 8080
STOPSIGNAL SIGTERM
# A file of your own needs [admin] listen with this port, too. The URL is named, so that a mistake in
# a proxy.toml that is being edited does not make a proxy that runs look ill.
HEALTHCHECK --interval=10s --timeout=4s --start-period=2s \
    CMD ["tidegate", "health", "http://127.0.0.1:9090"]
ENTRYPOINT ["tidegate"]
CMD ["run"]
