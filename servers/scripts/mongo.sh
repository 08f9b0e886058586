# Starts MongoDB, or FerretDB in the image that has that instead. Data survives a restart of the container.
set -eu
mkdir -p /srv/mongo
if command -v mongod > /dev/null; then
    exec mongod --bind_ip_all --port "$SERVER_PORT" --dbpath /srv/mongo
fi
# Commits do not wait for the disk: only if the machine crashed would they be lost.
exec /opt/checkpoint/ferretdb "0.0.0.0:$SERVER_PORT" 'file:/srv/mongo/?_pragma=synchronous(off)'
