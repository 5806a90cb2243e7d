FROM rust:1-slim-bookworm AS build
# `make` is for the allocator, which is written in C, as is the cryptography. The rest is for the profile (scripts/dist).
RUN apt-get update \
    && apt-get install -y --no-install-recommends make nghttp2-client openssl python3 redis-server \
    && rm -rf /var/lib/apt/lists/* && rustup component add llvm-tools
WORKDIR /src
COPY .cargo ./.cargo
COPY Cargo.toml Cargo.lock proxy.toml ./
COPY crates ./crates
# The load. The manifest names the other benchmarks and the tests too. They are not here, and that is no error.
COPY benches/peers ./benches/peers
COPY tests/data ./tests/data
COPY scripts/dist scripts/train.py ./scripts/
COPY src ./src
# `docker build --build-arg DIST=--no-profile` takes half the time, and each request then takes more CPU.
ARG DIST=
RUN ./scripts/dist $DIST && strip target/dist/tidegate
# In a container the proxy listens for others, and the health check needs the admin endpoint.
RUN sed -i -e 's/^#listen = "127.0.0.1:8080"/listen = "0.0.0.0:8080"/' \
        -e 's/^#listen = "127.0.0.1:9090"/listen = "127.0.0.1:9090"/' proxy.toml \
    && target/dist/tidegate check

FROM debian:bookworm-slim
# Whom to trust where an API is reached by https.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin tidegate
COPY --from=build /src/target/dist/tidegate /usr/local/bin/tidegate
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
