FROM rust:1-slim-bookworm AS build
# For the allocator, which is written in C, as is the cryptography.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY .cargo ./.cargo
COPY Cargo.toml Cargo.lock ./
# The dependencies by themselves, so that a change of the sources does not build them again. The tests and
# benchmarks are not here. That is no error, since the manifest gives the path of each.
RUN mkdir src && touch src/lib.rs && echo 'fn main() {}' > src/main.rs \
    && cargo build --release --locked && rm -r src
COPY src ./src
RUN touch src/lib.rs src/main.rs && cargo build --release --locked \
    && strip target/release/tidegate
COPY proxy.toml ./
# In a container the proxy listens for others, and the health check needs the admin endpoint.
RUN sed -i -e 's/^#listen = "127.0.0.1:8080"/listen = "0.0.0.0:8080"/' \
        -e 's/^#listen = "127.0.0.1:9090"/listen = "127.0.0.1:9090"/' proxy.toml \
    && target/release/tidegate check

FROM debian:bookworm-slim
# Whom to trust where an API is reached by https.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin tidegate
COPY --from=build /src/target/release/tidegate /usr/local/bin/tidegate
COPY --from=build /src/proxy.toml /etc/tidegate/proxy.toml
WORKDIR /etc/tidegate
# By its number: Kubernetes cannot tell from a name that it is not root.
USER 10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# A file of your own needs [admin] listen with this port, too. The URL is named, so that a mistake in
# a proxy.toml that is being edited does not make a proxy that runs look ill.
HEALTHCHECK --interval=10s --timeout=4s --start-period=2s \
    CMD ["tidegate", "health", "http://127.0.0.1:9090"]
ENTRYPOINT ["tidegate"]
CMD ["run"]
