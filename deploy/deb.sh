#!/usr/bin/env bash
# Packs a Debian package: the program, its manual page and completions, the units of systemd, an example in
# /etc/tidegate, and a system user. What is in it stands in Cargo.toml.
#
#     deploy/deb.sh [PROGRAM]
#
# Without PROGRAM, scripts/dist builds it. Wants cargo-deb (cargo install --locked cargo-deb) and Debian's package
# dpkg-dev. Writes target/debian/tidegate_VERSION-1_ARCHITECTURE.deb, for the release of Debian or Ubuntu on which the
# program was built, and for later ones.
set -euo pipefail
cd "$(dirname "$0")/.."

program="${1:-target/dist/tidegate}"
[ "$#" -gt 0 ] || ./scripts/dist

files=target/deb
rm -rf "$files"
mkdir -p "$files"
strip -o "$files/tidegate" "$program"
for shell in bash zsh fish; do
    "$program" completions "$shell" >"$files/tidegate.$shell"
done
"$program" man >"$files/tidegate.1"
for unit in service socket; do
    sed -e '/^# install /d' -e 's|/usr/local/bin/|/usr/bin/|' "deploy/systemd/tidegate.$unit" >"$files/tidegate.$unit"
done
cp deploy/systemd/tidegate.sysusers "$files"
cargo deb --quiet --no-build
