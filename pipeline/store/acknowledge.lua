#!lua flags=allow-oom
-- Ends items: acknowledged and deleted, each counted once.
--   KEYS  stream, books, alive, epoch, owner
--   ARGV  group, consumer, owner's token, mark, then per item: id, valid
--   reply {valid transitions that this call ended, mark}; no mark where what is there is older than the given one:
--         then nothing is done, the next put sees to it
-- XDEL decides: it deletes an entry once, whoever holds it and however often it is asked.
-- include guard
-- include fifo_mark
local refusal = fenced(KEYS[5], ARGV[3])
if refusal then return refusal end
if went_back(KEYS[4], KEYS[2], ARGV[4]) then return {0, ''} end
local acknowledged, ended = 0, 0
for i = 5, #ARGV, 2 do
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 then
    acknowledged, ended = acknowledged + tonumber(ARGV[i + 1]), ended + 1
  end
end
if ended ~= 0 then redis.call('HINCRBY', KEYS[2], 'changes', 1) end
if acknowledged ~= 0 then
  redis.call('HINCRBY', KEYS[2], 'acknowledged_total', acknowledged)
  redis.call('HINCRBY', KEYS[2], 'waiting', -acknowledged)
end
redis.call('HSET', KEYS[3], ARGV[2], redis.call('TIME')[1])
return {acknowledged, redis.call('EXISTS', KEYS[4]) == 1 and mark_of(KEYS[4], KEYS[2]) or ''}
