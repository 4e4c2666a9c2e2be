#!lua
-- Appends items, each once, as far as the capacity allows.
--   KEYS  stream, books, last, epoch, replies, owner
--   ARGV  group, new epoch, capacity, drop_oldest (0 | 1), producer, call, owner's token, mark, then per item:
--         "environment run row next_index valid", payload
--   reply {stored, repeated, dropped, epoch, mark}
-- Without flags the server refuses the whole script when it is out of memory: nothing is half done.
-- include runs
-- include guard
-- include fifo_mark
local stream, books, last, epoch, replies = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, capacity, drop, producer, token = ARGV[1], tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5], ARGV[6]
local FIELDS, FIRST = 2, 9

local refusal = fenced(KEYS[6], ARGV[7])
if refusal then return refusal end
if went_back(epoch, books, ARGV[8]) then
  redis.call('DEL', stream, books, last, epoch, replies) -- nobody knows which of its items are trained already
end

-- A call that was carried out while its reply was lost is answered with that reply.
local previous = redis.call('HGET', replies, producer)
if previous then
  local old, stored, repeated, dropped = string.match(previous, '^(%S+) (%d+) (%d+) (%d+)$')
  if old == token then
    return {tonumber(stored), tonumber(repeated), tonumber(dropped), redis.call('GET', epoch), mark_of(epoch, books)}
  end
end
if redis.call('SET', epoch, ARGV[2], 'NX') then
  redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- BUSYGROUP: it is there
end

local length = redis.call('XLEN', stream)
local untaken_from = nil
local function drop_oldest_untaken()
  if not untaken_from then
    local info = redis.call('XINFO', 'GROUPS', stream)
    for _, fields in ipairs(info) do
      local name, delivered
      for i = 1, #fields, 2 do
        if fields[i] == 'name' then name = fields[i + 1] end
        if fields[i] == 'last-delivered-id' then delivered = fields[i + 1] end
      end
      if name == group then untaken_from = '(' .. delivered end
    end
  end
  local entry = untaken_from and redis.call('XRANGE', stream, untaken_from, '+', 'COUNT', 1)[1]
  if not entry then return nil end
  redis.call('XDEL', stream, entry[1])
  return tonumber(entry[2][2]) -- fields: v, valid, p, payload
end

local names, runs_of = load_runs(last, FIRST, FIELDS)
local changed = {}

local stored, repeated, dropped, added = 0, 0, 0, 0
for i = FIRST, #ARGV, FIELDS do
  local environment, run, row, next_index, valid = unpack(names[i])
  if is_repeat(runs_of[environment], run, row) then
    repeated = repeated + 1
  else
    if length >= capacity and drop then
      local oldest = drop_oldest_untaken()
      if oldest then
        length, dropped = length - 1, dropped + oldest
      end
    end
    if length >= capacity then break end
    redis.call('XADD', stream, '*', 'v', valid, 'p', ARGV[i + 1])
    runs_of[environment] = with_run(runs_of[environment], run, row, next_index)
    changed[environment] = true
    length, added = length + 1, added + tonumber(valid)
  end
  stored = stored + 1
end

save_runs(last, runs_of, changed)
redis.call('HINCRBY', books, 'changes', 1)
if added ~= 0 then redis.call('HINCRBY', books, 'put_total', added) end
if dropped ~= 0 then redis.call('HINCRBY', books, 'dropped_total', dropped) end
if added ~= dropped then redis.call('HINCRBY', books, 'waiting', added - dropped) end
redis.call('HSET', replies, producer, string.format('%s %d %d %d', token, stored, repeated, dropped))
return {stored, repeated, dropped, redis.call('GET', epoch), mark_of(epoch, books)}
