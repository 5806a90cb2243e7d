FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src ./src
# The manifest names a test binary; for building, an empty one will do.
RUN mkdir -p tests/it && echo 'fn main() {}' > tests/it/main.rs \
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
# Asks the admin endpoint where proxy.toml has it; a file of your own needs [admin] listen, too.
HEALTHCHECK --interval=10s --timeout=4s --start-period=2s CMD ["tidegate", "health"]
ENTRYPOINT ["tidegate"]
CMD ["run"]
