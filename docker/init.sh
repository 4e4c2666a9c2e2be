#!/bin/sh
# The one-shot service `init` of docker-compose.yml: writes the secrets of this deployment into its volumes, once.
#
#   /run/seedmq/fleet    all CURVE keys, as `seedmq keys` writes them       broker
#   /run/seedmq/client   the client pair and the broker's public key        workers
#   /run/seedmq/learner  the learner's pair and the broker's public key     learner
#   /run/seedmq/redis    Redis' configuration with its password, password   redis, learner
#
# What stands is kept. Each directory is complete once its last file is there, so an interrupted run is begun again.
#
#   init.sh NAME   then adds a client pair NAME for workers of another host, and writes its directory to the standard
#                  output, as tar
set -eu
umask 077
root=/run/seedmq

if [ ! -e "$root/fleet/complete" ]; then
  rm -rf "$root/fleet"/* "$root/client"/* "$root/learner"/* # a pair without its fleet opens nothing
  seedmq keys "$root/fleet" >&2
  touch "$root/fleet/complete"
fi

for pair in client learner; do
  if [ ! -e "$root/$pair/$pair.key_secret" ]; then
    cp "$root/fleet/server.key" "$root/fleet/$pair.key" "$root/$pair/"
    cp "$root/fleet/$pair.key_secret" "$root/$pair/$pair.key_secret.new"
    mv "$root/$pair/$pair.key_secret.new" "$root/$pair/$pair.key_secret"
  fi
done

if [ ! -e "$root/redis/password" ]; then
  password=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
  cat > "$root/redis/redis.conf" <<CONF
requirepass $password
maxmemory-policy noeviction
save ""
appendonly no
CONF
  echo "$password" > "$root/redis/password.new"
  mv "$root/redis/password.new" "$root/redis/password"
fi

echo "init: keys and password are in place" >&2

if [ $# -gt 0 ]; then
  case "$1" in */* | .*) echo "init: $1 is no name" >&2 && exit 2 ;; esac
  [ -d "$root/fleet/clients/$1" ] || seedmq keys "$root/fleet" --client "$1" >&2
  tar -C "$root/fleet/clients" -c "$1"
fi
