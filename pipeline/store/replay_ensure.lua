#!lua flags=allow-oom
-- The epoch, begun where there is none.
--   KEYS  payloads, entries, books, epoch, owner
--   ARGV  new epoch, owner's token, mark
--   reply {epoch, mark}
-- include guard
-- include replay_mark
local payloads, entries, books, epoch = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local refusal = fenced(KEYS[5], ARGV[2])
if refusal then return refusal end
catch_up(payloads, entries, books, epoch, ARGV[3])
if redis.call('SET', epoch, ARGV[1], 'NX') then
  local now = redis.call('TIME') -- ids begin at the microsecond, so that those of lost data never come again
  local id = string.format('%.0f', tonumber(now[1]) * 1000000 + tonumber(now[2]))
  redis.call('HSET', books, 'base_id', id, 'first_id', id, 'next_id', id)
end
return {redis.call('GET', epoch), mark_of(epoch, books)}
