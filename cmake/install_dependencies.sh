#!/bin/sh
# Installs the build dependencies on Debian 12+ or Ubuntu 24.04+, as root or through sudo. Arguments
# are additional packages. Does nothing if all are installed.
set -eu

packages="cmake g++ ninja-build libeigen3-dev nlohmann-json3-dev libcli11-dev doctest-dev libonig-dev \
  libutf8proc-dev $*"

missing=""
for package in $packages; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=""
elif command -v sudo >/dev/null; then
  as_root="sudo"
else
  echo "Installing$missing needs root, or sudo." >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
# shellcheck disable=SC2086  # both are lists of words
$as_root apt-get install -y -q --no-install-recommends $missing </dev/null
