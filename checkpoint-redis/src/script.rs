//! The Lua scripts. `KEYS[1]` is the thread's hash, `KEYS[2]` its index.
//!
//! They are static and few, name every key that they touch, and run on Lua 5.1 to 5.4. A step that writes is one call, which
//! the server runs alone and replicates as one transaction.

use crate::connection::Script;

/// The beginning of the scripts that read metadata: `parse(row)` returns the parent and the names of values.
macro_rules! parse {
    () => {
        r"
local unpack = table.unpack or unpack
local function take(row, at)
  local a, b, c, d = string.byte(row, at, at + 3)
  local last = at + 3 + ((a * 256 + b) * 256 + c) * 256 + d
  return string.sub(row, at + 4, last), last + 1
end
local function parse(row)
  local parent, at = take(row, 2)
  local a, b, c, d = string.byte(row, at, at + 3)
  at = at + 4
  local names = {}
  for i = 1, ((a * 256 + b) * 256 + c) * 256 + d do
    names[i], at = take(row, at)
  end
  return parent, names
end
"
    };
}

/// Reads one checkpoint.
///
/// `ARGV`: the namespace's part of names, the checkpoint's part or nothing for the newest, the most bytes and the most
/// fields to return, the time to live in milliseconds or 0.
///
/// Returns what became of it (see [`found`]), then, if it is there: its part of names, metadata, checkpoint, the fields of
/// its writes, the addresses of each value's segments. Of a small one also: the writes, the values, the addresses of all
/// segments, the segments.
pub(crate) static GET: Script = Script::new(concat!(
    parse!(),
    r"
local suffix = ARGV[2]
if suffix == '' then
  local all = 'c' .. ARGV[1]
  local newest = redis.call('ZREVRANGEBYLEX', KEYS[2], '(' .. all .. '\255', '[' .. all, 'LIMIT', 0, 1)[1]
  if newest then suffix = string.sub(newest, 2) end
elseif not redis.call('ZSCORE', KEYS[2], 'c' .. suffix) then
  suffix = ''
end
local generation = redis.call('HEXISTS', KEYS[1], 'g')
if suffix == '' then
  if generation == 1 and redis.call('EXISTS', KEYS[2]) == 0 then return {2} end
  if generation == 0 and redis.call('EXISTS', KEYS[2]) == 1 then return {3} end
  return {0}
end
local rows = redis.call('HMGET', KEYS[1], 'm' .. suffix, 'c' .. suffix)
if not rows[1] or not rows[2] then return {3} end
if tonumber(ARGV[5]) > 0 and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[5]) * 0.9 then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
local writes = redis.call('ZRANGEBYLEX', KEYS[2], '[w' .. suffix, '(w' .. suffix .. '\255')
local _, names = parse(rows[1])
local fields, lists = {}, {}
for i = 1, #writes do fields[i] = writes[i] end
for i = 1, #names do
  fields[#fields + 1] = 'b' .. ARGV[1] .. names[i]
  lists[i] = redis.call('HGET', KEYS[1], 'l' .. ARGV[1] .. names[i]) or ''
end
local segments, seen = {}, {}
for i = 1, #lists do
  for at = 1, #lists[i], 24 do
    local address = string.sub(lists[i], at, at + 23)
    if not seen[address] then
      seen[address] = true
      segments[#segments + 1] = address
    end
  end
end
local most = tonumber(ARGV[4])
local size = #rows[1] + #rows[2]
local small = #fields + #segments <= most
if small then
  for i = 1, #fields do size = size + redis.call('HSTRLEN', KEYS[1], fields[i]) end
  for i = 1, #segments do size = size + redis.call('HSTRLEN', KEYS[1], 's' .. segments[i]) end
  small = size <= tonumber(ARGV[3])
end
if not small then return {1, suffix, rows[1], rows[2], writes, lists} end
local function read(kind, names)
  if #names == 0 then return {} end
  local all = {}
  for i = 1, #names do all[i] = kind .. names[i] end
  return redis.call('HMGET', KEYS[1], unpack(all))
end
return {1, suffix, rows[1], rows[2], writes, lists, read('', fields), segments, read('s', segments)}
"
));

/// What [`GET`] found.
pub(crate) mod found {
    pub(crate) const NOTHING: i64 = 0;
    pub(crate) const CHECKPOINT: i64 = 1;
    pub(crate) const INDEX_LOST: i64 = 2;
    pub(crate) const DATA_LOST: i64 = 3;
}

/// Reads a page of metadata.
///
/// `ARGV`: the upper bound, the lower bound, how many. Returns the members, newest first, their metadata, and whether there
/// are data and an index.
pub(crate) static PAGE: Script = Script::new(
    r"
local members = redis.call('ZREVRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local rows = {}
for i = 1, #members do
  local suffix = string.sub(members[i], 2)
  if string.sub(members[i], 1, 1) == 'a' then
    local zero = string.find(suffix, '\0', 1, true)
    local ns = string.gsub(string.sub(suffix, zero + 1, -2), '.', function(byte)
      return string.char(255 - string.byte(byte))
    end)
    suffix = ns .. string.sub(suffix, 1, zero)
  end
  rows[i] = redis.call('HGET', KEYS[1], 'm' .. suffix) or ''
end
return {members, rows, redis.call('HEXISTS', KEYS[1], 'g'), redis.call('EXISTS', KEYS[2])}
",
);

/// Reads ancestors: follows parents, from a checkpoint on.
///
/// `ARGV`: the namespace's part of names, the first checkpoint's id or nothing for the newest, how many. Returns ids and
/// metadata in turns, and ends before one that is not stored.
pub(crate) static WALK: Script = Script::new(concat!(
    parse!(),
    r"
local id, seen, rows = ARGV[2], {}, {}
if id == '' then
  local all = 'c' .. ARGV[1]
  local newest = redis.call('ZREVRANGEBYLEX', KEYS[2], '(' .. all .. '\255', '[' .. all, 'LIMIT', 0, 1)[1]
  if newest then id = string.sub(newest, #all + 1, -2) end
end
for _ = 1, tonumber(ARGV[3]) do
  if id == '' or seen[id] then break end
  seen[id] = true
  local suffix = ARGV[1] .. id .. '\0'
  local row = redis.call('ZSCORE', KEYS[2], 'c' .. suffix) and redis.call('HGET', KEYS[1], 'm' .. suffix)
  if not row then break end
  rows[#rows + 1] = id
  rows[#rows + 1] = row
  id = parse(row)
end
return rows
"
));

/// The beginning of the scripts that write: checks the lease and renews it.
///
/// `lease(token, holder, ttl)` is false if it was lost. It is stored as `token holder deadline`, in microseconds; the
/// server's clock decides.
macro_rules! write {
    () => {
        r"
local unpack = table.unpack or unpack
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local function lease(token, holder, ttl)
  local held = redis.call('HGET', KEYS[1], 'L')
  local start = token .. ' ' .. holder .. ' '
  if not held or string.sub(held, 1, #start) ~= start then return false end
  redis.call('HSET', KEYS[1], 'L', start .. string.format('%.0f', now() + tonumber(ttl)))
  return true
end
local function expire(ttl)
  if tonumber(ttl) > 0 then
    redis.call('PEXPIRE', KEYS[1], ttl)
    redis.call('PEXPIRE', KEYS[2], ttl)
  end
end
"
    };
}

/// Stores a checkpoint, if its conditions hold and everything is there that it carries over.
///
/// `KEYS[3]`, if given, is the thread's shard of the directory. `ARGV`: the time to live in milliseconds or 0, the thread,
/// the checkpoint's part of names, its member of the whole thread, metadata, checkpoint, the field of the step key or
/// nothing, the condition (`p`: the parent is stored, `l`: it is the newest, or nothing), the parent's part of names or
/// nothing, the namespace's part, token, holder and time to live of the lease (the token is nothing without one), the number
/// of fields to set, the number of values that the parent must refer to, whether to count the namespace's checkpoints (1 or
/// 0), the fields with their values, the names of these values, the fields that must be there.
///
/// Fields that are there stay: of two values under one version the first is kept, as in Python's savers.
///
/// Returns what it did (see [`put`]): `{stored, generation, whether there was an index, the count}`, `{lost lease}`,
/// `{repeats, id}`, `{refused, newest id or nothing, whether the parent is stored}`, `{missing}`.
pub(crate) static PUT: Script = Script::new(concat!(
    parse!(),
    write!(),
    r"
local H, I = KEYS[1], KEYS[2]
local suffix, step, condition, parent, ns = ARGV[3], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
if ARGV[11] ~= '' and not lease(ARGV[11], ARGV[12], ARGV[13]) then return {1} end
if step ~= '' then
  local id = redis.call('HGET', H, step)
  if id and redis.call('HEXISTS', H, 'm' .. ns .. id .. '\0') == 1 then return {2, id} end
end
if condition ~= '' and redis.call('HEXISTS', H, 'm' .. suffix) == 0 then
  local stored = 0
  if parent ~= '' then stored = redis.call('HEXISTS', H, 'm' .. parent) end
  if condition == 'l' then
    local newest = redis.call('ZREVRANGEBYLEX', I, '(c' .. ns .. '\255', '[c' .. ns, 'LIMIT', 0, 1)[1] or ''
    local is_newest = newest == ''
    if parent ~= '' then is_newest = newest == 'c' .. parent end
    if not is_newest then return {3, string.sub(newest, #ns + 2, -2), stored} end
  elseif parent ~= '' and stored == 0 then
    return {3, '', 0}
  end
end
local last = 16 + 2 * tonumber(ARGV[14])
local unchanged = last + tonumber(ARGV[15])
if unchanged > last then
  local row = redis.call('HGET', H, 'm' .. parent)
  if not row then return {4} end
  local has = {}
  local _, names = parse(row)
  for _, name in ipairs(names) do has[name] = true end
  for i = last + 1, unchanged do
    if not has[ARGV[i]] then return {4} end
  end
end
for i = unchanged + 1, #ARGV do
  if redis.call('HEXISTS', H, ARGV[i]) == 0 then return {4} end
end
local generation = redis.call('HINCRBY', H, 'g', 1)
local indexed = redis.call('EXISTS', I)
redis.call('HSET', H, 'm' .. suffix, ARGV[5], 'c' .. suffix, ARGV[6])
if step ~= '' then redis.call('HSET', H, step, string.sub(suffix, #ns + 1, -2)) end
for i = 17, last, 2 do
  redis.call('HSETNX', H, ARGV[i], ARGV[i + 1])
end
redis.call('ZADD', I, 0, 'c' .. suffix, 0, ARGV[4])
expire(ARGV[1])
if KEYS[3] then redis.call('ZADD', KEYS[3], 0, ARGV[2]) end
local count
if ARGV[16] == '1' then count = redis.call('ZLEXCOUNT', I, '[c' .. ns, '(c' .. ns .. '\255') end
return {0, generation, indexed, count}
"
));

/// What [`PUT`] and [`PUT_WRITES`] did.
pub(crate) mod put {
    pub(crate) const STORED: i64 = 0;
    pub(crate) const LOST_LEASE: i64 = 1;
    pub(crate) const REPEATS: i64 = 2;
    pub(crate) const REFUSED: i64 = 3;
    pub(crate) const MISSING: i64 = 4;
}

/// Stores writes, if their conditions hold.
///
/// `KEYS[3]` as for [`PUT`]. `ARGV`: the time to live in milliseconds or 0, the thread, the checkpoint's part of names, the
/// task's part of names, whether the task must have no result yet, whether the checkpoint must be stored, whether stored
/// writes are replaced (1 or 0), token, holder and time to live of the lease, then fields and values.
///
/// Returns `{stored, generation, whether there was an index}`, `{lost lease}`,
/// `{refused, whether the checkpoint is stored, whether the task has a result}`.
pub(crate) static PUT_WRITES: Script = Script::new(concat!(
    write!(),
    r"
local H, I = KEYS[1], KEYS[2]
if ARGV[8] ~= '' and not lease(ARGV[8], ARGV[9], ARGV[10]) then return {1} end
local stored = redis.call('HEXISTS', H, 'm' .. ARGV[3])
local first = 'w' .. ARGV[3] .. ARGV[4]
local has = 0
if ARGV[5] == '1' then
  has = #redis.call('ZRANGEBYLEX', I, '[' .. first .. '\128', '(' .. first .. '\255', 'LIMIT', 0, 1)
end
if has == 1 or (ARGV[6] == '1' and stored == 0) then return {3, stored, has} end
local generation = redis.call('HINCRBY', H, 'g', 1)
local indexed = redis.call('EXISTS', I)
local set = 'HSETNX'
if ARGV[7] == '1' then set = 'HSET' end
for i = 11, #ARGV, 2 do
  redis.call(set, H, ARGV[i], ARGV[i + 1])
  redis.call('ZADD', I, 0, ARGV[i])
end
expire(ARGV[1])
if KEYS[3] then redis.call('ZADD', KEYS[3], 0, ARGV[2]) end
return {0, generation, indexed}
"
));

/// Acquires the lease.
///
/// `ARGV`: the holder, the time to live in microseconds, the thread's time to live in milliseconds or 0. Returns the token,
/// or nothing and the microseconds until it expires.
pub(crate) static ACQUIRE: Script = Script::new(concat!(
    write!(),
    r"
local time = now()
local held = redis.call('HGET', KEYS[1], 'L')
local token = time
if held then
  local last, holder, deadline = string.match(held, '^(%S+) (%S*) (%S+)$')
  if holder == ARGV[1] then
    token = tonumber(last)
  else
    if holder ~= '' and tonumber(deadline) > time then
      return {'', string.format('%.0f', tonumber(deadline) - time)}
    end
    token = math.max(time, tonumber(last) + 1)
  end
end
token = string.format('%.0f', token)
redis.call('HSET', KEYS[1], 'L', token .. ' ' .. ARGV[1] .. ' ' .. string.format('%.0f', time + tonumber(ARGV[2])))
expire(ARGV[3])
return {token, '0'}
"
));

/// Renews the lease. `ARGV`: token, holder, time to live in microseconds. Returns 1, or 0 if it was lost.
pub(crate) static RENEW: Script =
    Script::new(concat!(write!(), "if lease(ARGV[1], ARGV[2], ARGV[3]) then return 1 end return 0"));

/// Gives the lease back; its token stays. `ARGV`: token, holder.
pub(crate) static RELEASE: Script = Script::new(
    r"
local held = redis.call('HGET', KEYS[1], 'L')
local start = ARGV[1] .. ' ' .. ARGV[2] .. ' '
if held and string.sub(held, 1, #start) == start then
  redis.call('HSET', KEYS[1], 'L', ARGV[1] .. '  0')
end
return 1
",
);

/// Removes checkpoints and writes, which are invisible from then on, and replaces fields.
///
/// `ARGV`: the number of fields to replace, of each: field, old value, new value; the number of members to remove, these,
/// the fields to remove. Returns 1, or 0 if a field to replace has changed: nothing is done then. Others who look at the
/// thread notice it by its generation, and a copy that is under way, see [`PUBLISH`].
pub(crate) static REMOVE: Script = Script::new(
    r"
local unpack = table.unpack or unpack
local replaced = 1 + 3 * tonumber(ARGV[1])
for i = 2, replaced, 3 do
  if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then return 0 end
end
for i = 2, replaced, 3 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
end
local members = replaced + 1 + tonumber(ARGV[replaced + 1])
for i = replaced + 2, members, 500 do
  redis.call('ZREM', KEYS[2], unpack(ARGV, i, math.min(i + 499, members)))
end
for i = members + 1, #ARGV, 500 do
  redis.call('HDEL', KEYS[1], unpack(ARGV, i, math.min(i + 499, #ARGV)))
end
if redis.call('HEXISTS', KEYS[1], 'g') == 1 then redis.call('HINCRBY', KEYS[1], 'g', 1) end
if redis.call('HEXISTS', KEYS[1], 'r') == 1 then redis.call('HINCRBY', KEYS[1], 'r', 1) end
return 1
",
);

/// Removes a thread with everything but its lease, if its generation is still `ARGV[1]`. Returns 1, or 0.
pub(crate) static REMOVE_THREAD: Script = Script::new(
    r"
if redis.call('HGET', KEYS[1], 'g') ~= ARGV[1] then return 0 end
local lease, ttl = redis.call('HGET', KEYS[1], 'L'), redis.call('PTTL', KEYS[1])
redis.call('UNLINK', KEYS[1], KEYS[2])
if lease then
  redis.call('HSET', KEYS[1], 'L', lease)
  if ttl > 0 then redis.call('PEXPIRE', KEYS[1], ttl) end
end
return 1
",
);

/// Collects garbage: deletes those values to which no checkpoint refers any more, and their segments.
///
/// `ARGV`: how many values, the values' fields without their kind, then segments without their kind that may be garbage, too.
/// Of a thread without checkpoints and writes nothing is left but its lease. Returns the number of deleted fields.
pub(crate) static COLLECT: Script = Script::new(concat!(
    parse!(),
    r"
local H, I = KEYS[1], KEYS[2]
local live = {}
local from, more = '[c', true
while more do
  local page = redis.call('ZRANGEBYLEX', I, from, '(d', 'LIMIT', 0, 500)
  for i = 1, #page do
    local suffix = string.sub(page[i], 2)
    local at = 1
    while true do
      at = string.find(suffix, '\0', at, true)
      if string.byte(suffix, at + 1) ~= 255 then break end
      at = at + 2
    end
    local ns = string.sub(suffix, 1, at)
    local row = redis.call('HGET', H, 'm' .. suffix)
    if row then
      local _, names = parse(row)
      for _, name in ipairs(names) do live[ns .. name] = true end
    end
  end
  more = #page == 500
  if more then from = '(' .. page[#page] end
end
local deleted, segments = 0, {}
local values = 1 + tonumber(ARGV[1])
for i = 2, values do
  if not live[ARGV[i]] then
    local list = redis.call('HGET', H, 'l' .. ARGV[i])
    if list then
      for at = 1, #list, 24 do segments[string.sub(list, at, at + 23)] = true end
    end
    deleted = deleted + redis.call('HDEL', H, 'b' .. ARGV[i], 'l' .. ARGV[i])
  end
end
for i = values + 1, #ARGV do segments[ARGV[i]] = true end
if next(segments) then
  for name in pairs(live) do
    local list = redis.call('HGET', H, 'l' .. name)
    if list then
      for at = 1, #list, 24 do segments[string.sub(list, at, at + 23)] = nil end
    end
  end
  for address in pairs(segments) do
    deleted = deleted + redis.call('HDEL', H, 's' .. address)
  end
end
if redis.call('EXISTS', I) == 0 then redis.call('HDEL', H, 'g', 'r') end
if redis.call('HEXISTS', H, 'r') == 1 then redis.call('HINCRBY', H, 'r', 1) end
return deleted
"
));

/// Makes a copy visible, unless something was removed from its thread since it began.
///
/// `ARGV`: the number of removals when it began, the time to live in milliseconds or 0, the members. Returns 1, or 0.
pub(crate) static PUBLISH: Script = Script::new(
    r"
if redis.call('HGET', KEYS[1], 'r') ~= ARGV[1] then return 0 end
redis.call('HINCRBY', KEYS[1], 'g', 1)
for i = 3, #ARGV do redis.call('ZADD', KEYS[2], 0, ARGV[i]) end
if tonumber(ARGV[2]) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1
",
);

/// Replaces fields that have not changed. `ARGV`: field, old value, new value in turns; a new value of nothing deletes the
/// field, an old value of nothing requires that it is absent. All or none: returns 1, or 0 if one has changed.
pub(crate) static REPLACE: Script = Script::new(
    r"
for i = 1, #ARGV, 3 do
  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') ~= ARGV[i + 1] then return 0 end
end
for i = 1, #ARGV, 3 do
  if ARGV[i + 2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
  end
end
return 1
",
);
