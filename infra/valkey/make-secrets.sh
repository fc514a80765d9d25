#!/bin/sh
# Passwords for the users of users.acl.in, and the ACL file that knows their digests:
#
#   sh infra/valkey/make-secrets.sh FOLDER        e.g. infra/compose/secrets, /etc/shoal/secrets
#
# FOLDER/<user>.password is made where it is not there and never changed: delete one and run this again for a new one.
# FOLDER/users.acl is written anew each time; load it with ACL LOAD or a restart. Only the owner of FOLDER comes into it;
# the files in it may be read by others, because a container has its file mounted and runs as a user of its own.

set -eu
umask 022
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
template=$here/users.acl.in

[ $# -eq 1 ] || { echo 'usage: sh infra/valkey/make-secrets.sh FOLDER' >&2 && exit 2; }
folder=$1

digest() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

mkdir -p "$folder"
chmod 700 "$folder"
lines=$(grep '^user ' "$template")
for user in $(printf '%s\n' "$lines" | sed -n 's/.*#@\([a-z]*\)@.*/\1/p'); do
  password=$folder/$user.password
  if [ ! -s "$password" ]; then
    # 32 bytes of the system's source, as hexadecimal digits: no character that a URL or a shell reads otherwise
    od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >"$password.new"
    mv "$password.new" "$password"
    echo "made $password" >&2
  fi
  lines=$(printf '%s\n' "$lines" | sed "s/#@$user@/#$(tr -d '\r\n' <"$password" | digest)/")
done
printf '%s\n' "$lines" >"$folder/users.acl.new"
mv "$folder/users.acl.new" "$folder/users.acl"
echo "wrote $folder/users.acl" >&2
