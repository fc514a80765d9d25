#!/bin/sh
# The C++ compiler for libraries that are published: what of its own archives nothing calls is left out, and with it the
# newest functions of glibc that these ask for.
exec c++ "$@" -Wl,--gc-sections,--exclude-libs,ALL
