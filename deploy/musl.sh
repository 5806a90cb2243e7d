#!/usr/bin/env bash
# Builds a static binary, which needs nothing of the machine that runs it but a Linux kernel, and packs it
# with the completions, the manual page and the units of systemd.
#
#     deploy/musl.sh [--no-profile] [TARGET]
#
# Wants rustup, musl-gcc (Debian's package musl-tools), and what scripts/dist wants, which builds the program.
# Writes target/tidegate-VERSION-TARGET.tar.gz.
set -euo pipefail
cd "$(dirname "$0")/.."

options=()
if [ "${1:-}" = --no-profile ]; then
    options=(--no-profile)
    shift
fi
target="${1:-$(uname -m)-unknown-linux-musl}"
rustup target add "$target"
./scripts/dist "${options[@]}" "$target"

built=target/dist/tidegate
version="$("$built" --version | cut -d ' ' -f 2)"
name="tidegate-$version-$target"
folder="target/$name"
rm -rf "$folder"
mkdir -p "$folder/completions"
strip -o "$folder/tidegate" "$built"
for shell in bash zsh fish; do
    "$built" completions "$shell" >"$folder/completions/tidegate.$shell"
done
"$built" man >"$folder/tidegate.1"
cp proxy.toml README.md CHANGELOG.md LICENSE-* deploy/systemd/tidegate.service deploy/systemd/tidegate.socket "$folder"
tar -czf "target/$name.tar.gz" -C target "$name"
echo "target/$name.tar.gz"
