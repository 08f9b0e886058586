# Starts PgBouncer in transaction mode in front of the PostgreSQL at $SERVER_UPSTREAM, for all of its databases.
# Named statements are not supported: this is the setting that clients must handle.
set -eu
cat > /tmp/pgbouncer.ini <<CONF
[databases]
* = host=$SERVER_UPSTREAM port=5432
[pgbouncer]
listen_addr = *
listen_port = 6432
unix_socket_dir =
auth_type = scram-sha-256
auth_file = /tmp/users.txt
admin_users = $SERVER_USER
pool_mode = transaction
max_prepared_statements = 0
max_client_conn = 1000
default_pool_size = 20
# A server that is up again is used immediately.
server_login_retry = 1
dns_max_ttl = 1
CONF
printf '"%s" "%s"\n' "$SERVER_USER" "$SERVER_PASSWORD" > /tmp/users.txt
chown postgres /tmp/pgbouncer.ini /tmp/users.txt
exec setpriv --reuid=postgres --regid=postgres --init-groups pgbouncer /tmp/pgbouncer.ini
