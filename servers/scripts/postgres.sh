# Starts PostgreSQL in the foreground, and creates the cluster if it does not exist. The same script runs in the official
# image and in the one from Debian's packages: both have the programs in the same place.
# With certificates in /certs the server supports TLS, and the role cert_user logs in by certificate only.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
data=/srv/postgres
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }

if [ ! -e "$data.made" ]; then
    rm -rf "$data"
    install -d -o postgres -g postgres -m 700 "$data"
    printf '%s\n' "$SERVER_PASSWORD" > /srv/password
    chown postgres /srv/password
    # shellcheck disable=SC2086
    as_postgres "$bin/initdb" --pgdata="$data" --username="$SERVER_USER" --pwfile=/srv/password \
        --auth=scram-sha-256 --encoding=UTF8 $SERVER_LOCALE
    rm /srv/password
    cat >> "$data/postgresql.conf" <<CONF
listen_addresses = '*'
unix_socket_directories = '/tmp'
max_connections = 300
shared_buffers = 256MB
max_wal_size = 4GB
checkpoint_timeout = 30min
CONF
    if [ -e /certs/server.crt ]; then
        for file in ca.crt server.crt server.key; do
            install -o postgres -g postgres -m 600 "/certs/$file" "$data/$file"
        done
        cat >> "$data/postgresql.conf" <<CONF
ssl = on
ssl_ca_file = 'ca.crt'
ssl_cert_file = 'server.crt'
ssl_key_file = 'server.key'
CONF
    fi
    cat > "$data/pg_hba.conf" <<CONF
local all all trust
hostssl all cert_user all cert
host all cert_user all reject
host all all all scram-sha-256
CONF
    echo "CREATE ROLE cert_user LOGIN" | as_postgres "$bin/postgres" --single -D "$data" "$SERVER_DATABASE"
    : > "$data.made"
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups "$bin/postgres" -D "$data"
