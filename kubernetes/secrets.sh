#!/bin/sh
# Prints the Secrets and ConfigMaps that kubernetes/base refers to, made of a key directory (`seedmq keys DIR`) and of a
# file that holds Redis' password; CA_FILE is what signs Redis' certificate, where that is a CA of yours. Run it again
# after `seedmq keys DIR --client NAME` or after a revocation. NAMESPACE is another namespace than `seedmq`.
#
#   kubernetes/secrets.sh DIR PASSWORD_FILE [CA_FILE] | kubectl apply --server-side -f -
#
#   seedmq-broker-keys          the server's pair                                     broker
#   seedmq-learner-keys         the learner's pair, the server's public key           learner
#   seedmq-worker-keys          the client pair, the server's public key              workers
#   seedmq-authorized-workers   public keys that may connect as workers               broker, re-read while it runs
#   seedmq-authorized-learners  public keys that may connect as learners              broker, re-read while it runs
#   seedmq-redis                password, ca.crt; auth.conf for components/redis      learner, redis
set -eu
[ $# = 2 ] || [ $# = 3 ] || { echo "usage: $0 KEY_DIRECTORY REDIS_PASSWORD_FILE [CA_FILE]" >&2; exit 2; }
keys=$1 password=$2 ca=${3:-}
for file in "$keys/server.key_secret" "$keys/learner.key_secret" "$keys/client.key_secret" "$password" ${ca:+"$ca"}; do
  [ -s "$file" ] || { echo "$0: $file is missing or empty" >&2; exit 2; }
done

make() {
  echo "---"
  kubectl create "$@" --namespace "${NAMESPACE:-seedmq}" --dry-run=client --output yaml
}

make secret generic seedmq-broker-keys \
  --from-file="$keys/server.key" --from-file="$keys/server.key_secret"
make secret generic seedmq-learner-keys \
  --from-file="$keys/server.key" --from-file="$keys/learner.key" --from-file="$keys/learner.key_secret"
make secret generic seedmq-worker-keys \
  --from-file="$keys/server.key" --from-file="$keys/client.key" --from-file="$keys/client.key_secret"
make configmap seedmq-authorized-workers --from-file="$keys/authorized/workers"
make configmap seedmq-authorized-learners --from-file="$keys/authorized/learners"
# Not by --from-literal: a command line is there for all to see.
IFS= read -r secret < "$password" || [ -n "$secret" ]
printf 'requirepass %s\n' "$secret" |
  make secret generic seedmq-redis --from-file=password="$password" --from-file=auth.conf=/dev/stdin \
    ${ca:+--from-file=ca.crt="$ca"}
