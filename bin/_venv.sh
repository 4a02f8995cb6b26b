# Sourced by the scripts of this directory: makes the checkout's own virtual environment on first use and keeps it
# in step with pyproject.toml. Plain sh.
#
#   root=...               the checkout; set it before sourcing
#   retryflow_venv EXTRAS  afterwards $venv/bin/python has retryflow, editable, with these extras ("" for none)
#   retryflow_venv_with_a_driver  the same for the daemons: with the driver of at least one database server
#
# PYTHON names the interpreter to use (3.11 or newer), RETRYFLOW_VENV the directory (default: .venv in the checkout).

venv=${RETRYFLOW_VENV:-$root/.venv}

_say() {
    printf '%s\n' "$*" >&2
}

_find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    _say "retryflow needs Python 3.11 or newer, and found none; install one, or name it: PYTHON=/path/to/python3 $0"
    return 1
}

_make_venv() {
    python=$(_find_python) || return 1
    _say "Making a virtual environment in $venv (once) ..."
    if ! "$python" -m venv --clear "$venv" >&2; then
        _say "$python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
        return 1
    fi
}

_is_current() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c 'import retryflow' 2>/dev/null
}

_install() {
    extras=$1
    if _is_current; then
        return 0
    fi
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        _make_venv || return 1
    fi
    _say "Installing retryflow${extras:+ with $extras} (a minute or two, only after a change of pyproject.toml) ..."
    if ! "$venv/bin/python" -m pip install -qq --disable-pip-version-check --editable "$root${extras:+[$extras]}" >&2
    then
        _say "The installation failed: is a package index reachable? See the message above."
        return 1
    fi
    printf '%s\n' "$wanted" >"$stamp"
}

retryflow_venv() {
    stamp=$venv/.retryflow-installed${1:+-with-$(printf '%s' "$1" | tr ',' '-')}
    # The place is part of it: an environment that was moved along with the checkout still points to the old one.
    wanted="$(cksum <"$root/pyproject.toml") $root"
    mkdir -p "$venv" || return 1
    if command -v flock >/dev/null 2>&1; then
        # Two commands started together must not install into one environment at the same time.
        (flock 9 && _install "$1") 9<"$venv" || return 1
    else
        _install "$1" || return 1
    fi
}

# For the daemons: an environment that has what they need stays as it is, so that their start needs no package index.
retryflow_venv_with_a_driver() {
    "$venv/bin/python" - 2>/dev/null <<'EOF' || retryflow_venv mysql,postgresql
import sys
from importlib.util import find_spec

sys.exit(not (find_spec("oslo_service") and (find_spec("psycopg") or find_spec("pymysql"))))
EOF
}
