#!lua
-- Inserts items, each once, and evicts the oldest as far as the capacities demand.
--   KEYS  payloads, entries, books, last, epoch, replies, owner
--   ARGV  new epoch, capacity, capacity in bytes (0: none), producer, call, owner's token, mark, then per item:
--         "environment run row next_index valid", payload, priority (8 bytes)
--   reply {first id inserted, mask, first id evicted, evicted items, evicted valid, epoch, mark}; the mask has a character for
--         each item: 1 inserted, 0 repeated
-- Without flags the server refuses the whole script when it is out of memory: nothing is half done.
-- include runs
-- include guard
-- include replay_mark
local payloads, entries, books, last, epoch, replies = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local capacity, capacity_bytes, producer, token = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local FIELDS, FIRST = 3, 8

local refusal = fenced(KEYS[7], ARGV[6])
if refusal then return refusal end
catch_up(payloads, entries, books, epoch, ARGV[7])

-- Numbers travel as text: Lua would write a large one with an exponent.
local function text(number) return string.format('%.0f', number) end

-- A call that was carried out while its reply was lost is answered with that reply.
local previous = redis.call('HGET', replies, producer)
if previous then
  local old, id, mask, evicted_from, evicted, valid = string.match(previous, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if old == token then
    return {id, mask, evicted_from, evicted, valid, redis.call('GET', epoch), mark_of(epoch, books)}
  end
end
if redis.call('SET', epoch, ARGV[1], 'NX') then
  -- Ids begin at the microsecond, so that those of lost data never come again.
  local now = redis.call('TIME')
  local id = text(tonumber(now[1]) * 1000000 + tonumber(now[2]))
  redis.call('HSET', books, 'base_id', id, 'first_id', id, 'next_id', id)
end

local book = redis.call('HMGET', books, 'first_id', 'next_id', 'bytes')
local first_id, next_id, bytes = tonumber(book[1]), tonumber(book[2]), tonumber(book[3] or 0)
local inserted_from, evicted_from, evicted_valid = next_id, first_id, 0

local function evict()
  local id = text(first_id)
  local entry = redis.call('HGET', entries, id)
  if entry then -- else it was lost: replay_mark.lua
    local _, valid, size = struct.unpack('<dI4I4', entry)
    redis.call('HDEL', payloads, id)
    redis.call('HDEL', entries, id)
    bytes, evicted_valid = bytes - size, evicted_valid + valid
  end
  first_id = first_id + 1
end

local names, runs_of = load_runs(last, FIRST, FIELDS)
local changed = {}

local mask, inserted_valid = {}, 0
for i = FIRST, #ARGV, FIELDS do
  local environment, run, row, next_index, valid = unpack(names[i])
  if is_repeat(runs_of[environment], run, row) then
    mask[#mask + 1] = '0'
  else
    local size = #ARGV[i + 1]
    while first_id < next_id
      and (next_id - first_id >= capacity or (capacity_bytes > 0 and bytes + size > capacity_bytes)) do
      evict()
    end
    local id = text(next_id)
    redis.call('HSET', payloads, id, ARGV[i + 1])
    redis.call('HSET', entries, id, ARGV[i + 2] .. struct.pack('<I4I4', tonumber(valid), size))
    next_id, bytes, inserted_valid = next_id + 1, bytes + size, inserted_valid + tonumber(valid)
    runs_of[environment] = with_run(runs_of[environment], run, row, next_index)
    changed[environment] = true
    mask[#mask + 1] = '1'
  end
end

if next(changed) then
  save_runs(last, runs_of, changed)
  redis.call('HSET', books, 'first_id', text(first_id), 'next_id', text(next_id), 'bytes', text(bytes))
  redis.call('HINCRBY', books, 'inserted_total', inserted_valid)
  redis.call('HINCRBY', books, 'evicted_total', evicted_valid)
  redis.call('HINCRBY', books, 'resident', inserted_valid - evicted_valid)
end
local reply = {text(inserted_from), table.concat(mask), text(evicted_from), text(first_id - evicted_from),
  text(evicted_valid)}
redis.call('HSET', replies, producer, token .. ' ' .. table.concat(reply, ' '))
reply[6], reply[7] = redis.call('GET', epoch), mark_of(epoch, books)
return reply
