#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing, and says which. Usage: tools/deps.sh [build] [lint] [fuzz] [container]
# (default: build). Does nothing, quickly and silently, when nothing is missing.
set -eu

build="gcc make pkg-config libc6-dev libsystemd-dev libjson-c-dev libinih-dev libcunit1-dev scdoc jq"
lint="clang-format clang-tidy cppcheck"
fuzz="clang libclang-rt-14-dev"
# To boot a container in a test (tests/integration/container.sh).
container="systemd systemd-container"

packages=""
for group in "${@:-build}"; do
        case "$group" in
        build) packages="$packages $build" ;;
        lint) packages="$packages $lint" ;;
        fuzz) packages="$packages $fuzz" ;;
        container) packages="$packages $container" ;;
        *) echo "deps.sh: unknown group '$group'; known: build lint fuzz container" >&2; exit 2 ;;
        esac
done

if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "deps.sh: this is not a Debian system; needed are the equivalents of:$packages" >&2
        exit 0
fi

missing=""
for package in $packages; do
        status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
        [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
                echo "deps.sh: missing packages, and neither root nor sudo to install them. As root, run:" >&2
                echo "    apt-get install$missing" >&2
                exit 1
        fi
        as_root=sudo
fi
echo "deps.sh: installing Debian packages:$missing" >&2
# The lists of a fresh machine may be empty or old; try with what is there only if a refresh fails.
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update ||
        echo "deps.sh: apt-get update failed; trying with the package lists that are there" >&2
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing
