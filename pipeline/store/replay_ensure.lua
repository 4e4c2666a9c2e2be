#!lua flags=allow-oom
-- The epoch, begun where there is none.
--   KEYS  books, epoch
--   ARGV  new epoch
--   reply the epoch
if redis.call('SET', KEYS[2], ARGV[1], 'NX') then
  local now = redis.call('TIME') -- ids begin at the microsecond, so that those of lost data never come again
  local id = string.format('%.0f', tonumber(now[1]) * 1000000 + tonumber(now[2]))
  redis.call('HSET', KEYS[1], 'base_id', id, 'first_id', id, 'next_id', id)
end
return redis.call('GET', KEYS[2])
