#!lua flags=allow-oom
-- Goes on with a lease, also where Redis lost it; 0 milliseconds end it.
--   KEYS  owner
--   ARGV  token, run, name, since, milliseconds of the lease
--   reply 1
-- include guard
local refusal = fenced(KEYS[1], ARGV[1])
if refusal then return refusal end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'run', ARGV[2], 'name', ARGV[3], 'since', ARGV[4],
  'until', string.format('%.0f', now + tonumber(ARGV[5])))
return 1
