#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the Makefile does before and around Python; runs with any POSIX shell and says what it is doing.
#   setup.sh setup           system packages where apt-get can install them, then .venv
#   setup.sh root CMD...     run a command as root: in user namespaces where the kernel has them, else through sudo
#   setup.sh test ARGS...    run pytest, likewise where that needs no password
#   setup.sh clean           remove what set-up and runs have made in this folder
set -eu
cd "$(dirname "$0")"

VENV=.venv
STAMP=$VENV/.p4reduce-setup

say() { printf '%s\n' "setup: $*"; }
fail() { printf '%s\n' "setup: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
# Says why not on its own; then `sudo` is what is left.
rootless() { $VENV/bin/python -m topologies.rootless true; }
passwordless() { have sudo && sudo -n true 2>/dev/null; }

# /usr/sbin holds ip and ethtool, and is not on every user's path.
PATH=$PATH:/usr/sbin:/sbin

find_python() {
    for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10; do
        if have "$python" && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            PYTHON=$python
            return
        fi
    done
    is="not there"
    if have "${PYTHON:-python3}"; then is=$("${PYTHON:-python3}" -V 2>&1 || true); fi
    fail "Python 3.10 or newer is needed, and ${PYTHON:-python3} is $is: install one, or name yours with make PYTHON=/path/to/python3."
}

works_cc() { printf '#include <stdint.h>\nint x;\n' | "${CC:-cc}" -x c -c -o /dev/null - 2>/dev/null; }

# The packages that this machine lacks, by Debian's names.
missing_packages() {
    works_cc || printf ' gcc libc6-dev'
    have mnexec || printf ' mininet'
    have ip || printf ' iproute2'
    have ethtool || printf ' ethtool'
    have ifconfig || printf ' net-tools'
    have ping || printf ' iputils-ping'
    if [ ! -x $VENV/bin/python ] && ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
        case $(basename "$PYTHON") in
        python3.*) printf ' %s-venv' "$(basename "$PYTHON")" ;;
        *) printf ' python3-venv' ;;
        esac
    fi
}

install_packages() {
    wanted=$(missing_packages)
    [ -n "$wanted" ] || return 0
    as_root=
    if [ "$(id -u)" != 0 ]; then as_root="sudo -n"; fi
    if have apt-get && { [ -z "$as_root" ] || passwordless; }; then
        say "installing with apt-get:$wanted"
        log=$(mktemp)
        # shellcheck disable=SC2086 # both are lists of words
        if $as_root apt-get update -q >"$log" 2>&1 &&
            $as_root env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y -q --no-install-recommends $wanted >>"$log" 2>&1; then
            rm -f "$log"
        else
            tail -n 5 "$log" >&2
            say "apt-get could not install them all; its whole output is in $log"
        fi
    fi
    for package in $(missing_packages); do
        case $package in
        mininet) what="mnexec is missing (it makes the hosts' namespaces)" ;;
        gcc) what="a C compiler is missing (the embedded switch compiles P4 programs)" ;;
        libc6-dev) continue ;;
        python3*-venv) what="Python's venv module is missing" ;;
        *) what="$package is missing" ;;
        esac
        [ "$package" != gcc ] || package="gcc libc6-dev"
        if have apt-get; then
            how="sudo apt-get install --no-install-recommends $package"
        else
            how="install your system's package for Debian's $package"
        fi
        if [ "$package" = mininet ]; then
            how="$how; where there is no such package or it has no mnexec, build it from Mininet's sources (make mnexec)"
        fi
        case $package in python3*-venv) fail "$what: $how." ;; esac
        say "$what: $how. Tests and commands that need it will say so."
    done
}

make_venv() {
    # A .venv works at one path, with one Python, for one list of dependencies.
    want="$(cksum <pyproject.toml) $PWD $("$PYTHON" -V 2>&1)"
    if [ -f $STAMP ] && [ "$(cat $STAMP)" = "$want" ] && $VENV/bin/python -c 'import wire, typer' 2>/dev/null; then
        return 0
    fi
    # What is behind a link belongs to another folder: it would be emptied, or made to run this folder's code.
    if [ -L $VENV ]; then
        fail "$VENV is a link to $(readlink $VENV), which was not made for this folder: remove the link (rm $VENV), and make setup makes an environment here."
    fi
    if ! { [ -x $VENV/bin/python ] && $VENV/bin/python -m pip --version >/dev/null 2>&1; } ||
        { [ -f $STAMP ] && [ "$(cut -d' ' -f3- $STAMP)" != "$(printf '%s' "$want" | cut -d' ' -f3-)" ]; }; then
        say "making $VENV with $("$PYTHON" -V 2>&1)"
        "$PYTHON" -m venv --clear $VENV || fail "$PYTHON cannot make a virtual environment: sudo apt-get install python3-venv."
    fi
    say "installing p4reduce and the Python packages that it needs into $VENV (a minute or two the first time)"
    $VENV/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' ||
        fail "pip could not install the packages; what it says is above: a network, or a proxy set for pip, is needed once."
    printf '%s\n' "$want" >$STAMP
    say "done: $VENV/bin/p4reduce"
}

run_as_root() {
    if [ "$(id -u)" = 0 ]; then exec "$@"; fi
    if rootless; then exec $VENV/bin/python -m topologies.rootless "$@"; fi
    have sudo || fail "networks need root or user namespaces, and there is no sudo here: run make as root."
    passwordless || say "networks need root or user namespaces: sudo asks for your password"
    # No bytecode: root's files in a user's folder are a nuisance.
    exec sudo env PATH="$PATH" PYTHONDONTWRITEBYTECODE=1 ${P4REDUCE_SWITCH:+P4REDUCE_SWITCH="$P4REDUCE_SWITCH"} "$@"
}

run_tests() {
    # Much of the time is waiting: one process builds networks, the others do what needs none.
    set -- $VENV/bin/python -m pytest -n 3 "$@"
    if [ "$(id -u)" = 0 ]; then exec "$@"; fi
    if rootless; then
        say "running the tests in user namespaces: those of networks need root there"
        exec $VENV/bin/python -m topologies.rootless "$@"
    fi
    if passwordless; then
        say "running the tests through sudo: those of networks need root"
        run_as_root "$@" -p no:cacheprovider
    fi
    say "no user namespaces, no sudo without a password: the tests of networks are skipped (sudo make test runs all)"
    exec "$@"
}

# The first words of what runs with this folder's .venv: without it nothing could stop a network.
still_running() {
    here=$(printf '%s' "$PWD/$VENV/bin/" | sed 's/[][\\.*^$]/\\&/g')
    for file in $(grep -lsa "^$here" /proc/[0-9]*/cmdline); do
        tr '\000' '\n' <"$file" 2>/dev/null | head -n 4 | tr '\n' ' '
        return
    done
}

clean() {
    running=$(still_running)
    [ -z "$running" ] || fail "${running}... still runs with what would be removed: p4reduce net down, or end it, first."
    set -- $VENV build results .hypothesis .pytest_cache .mypy_cache .ruff_cache ./*.egg-info
    find . -name __pycache__ -type d -not -path "./$VENV/*" -prune -exec rm -rf {} + 2>/dev/null || true
    rm -rf "$@" || fail "some files belong to root: sudo make clean."
}

case ${1:-setup} in
setup) find_python; install_packages; make_venv ;;
root) shift; run_as_root "$@" ;;
test) shift; run_tests "$@" ;;
clean) clean ;;
*) fail "no such step: $1 (there is setup, root, test, clean)" ;;
esac
