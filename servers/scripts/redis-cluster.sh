# Starts a Redis cluster of three primaries, each with one replica, on $SERVER_PORT and the five ports after it. Programs on
# the host reach the nodes under the addresses that they announce: the same ports of 127.0.0.1. The folder of each node
# survives a restart, so that it comes back as what it was. `sh /srv/redis-cluster/start PORT` starts a killed node again.
set -eu
folder=/srv/redis-cluster
ports="$SERVER_PORT $((SERVER_PORT + 1)) $((SERVER_PORT + 2)) $((SERVER_PORT + 3)) $((SERVER_PORT + 4)) $((SERVER_PORT + 5))"
if [ ! -e "$folder/made" ]; then
    rm -rf "$folder"
fi
mkdir -p "$folder"
cat > "$folder/start" <<'START'
set -eu
mkdir -p "/srv/redis-cluster/$1"
# The usual port of the bus, 10,000 higher, may not exist.
exec redis-server --bind 0.0.0.0 --protected-mode no --port "$1" --dir "/srv/redis-cluster/$1" --daemonize yes \
    --pidfile "/srv/redis-cluster/$1/pid" --logfile "/srv/redis-cluster/$1/log" --appendonly yes --save '' \
    --cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 2000 \
    --cluster-port "$(($1 + 100))" --cluster-announce-ip 127.0.0.1 \
    --cluster-allow-replica-migration no --repl-diskless-sync-delay 0
START
stop() {
    for port in $ports; do
        kill "$(cat "$folder/$port/pid")" || true
    done
    for port in $ports; do
        while redis-cli -p "$port" ping > /dev/null 2>&1; do sleep 0.05; done
    done
    exit 0
}
trap stop TERM
for port in $ports; do
    sh "$folder/start" "$port"
done
if [ ! -e "$folder/made" ]; then
    nodes=
    for port in $ports; do
        until redis-cli -p "$port" ping | grep -q PONG; do sleep 0.05; done
        nodes="$nodes 127.0.0.1:$port"
    done
    # shellcheck disable=SC2086
    redis-cli --cluster create $nodes --cluster-replicas 1 --cluster-yes
    : > "$folder/made"
fi
# In the background, so that the signal is handled at once.
while :; do
    sleep 3600 &
    wait $! || true
done
