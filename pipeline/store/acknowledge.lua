#!lua flags=allow-oom
-- Ends items: acknowledged and deleted, each counted once.
--   KEYS  stream, books, alive
--   ARGV  group, consumer, then per item: id, valid
--   reply valid transitions that this call ended
-- XDEL decides: it deletes an entry once, whoever holds it and however often it is asked.
local acknowledged = 0
for i = 3, #ARGV, 2 do
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 then
    acknowledged = acknowledged + tonumber(ARGV[i + 1])
  end
end
if acknowledged ~= 0 then
  redis.call('HINCRBY', KEYS[2], 'acknowledged_total', acknowledged)
  redis.call('HINCRBY', KEYS[2], 'waiting', -acknowledged)
end
redis.call('HSET', KEYS[3], ARGV[2], redis.call('TIME')[1])
return acknowledged
