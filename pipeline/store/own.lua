#!lua flags=allow-oom
-- Takes the store for a run. A run that is the owner already gets it again at once: its predecessor is dead.
--   KEYS  owner
--   ARGV  run, name, milliseconds of the lease
--   reply {token, since}, or {'', name, since, milliseconds left} of the run that has it
local time = redis.call('TIME')
local seconds, micros = tonumber(time[1]), tonumber(time[2])
local now = seconds * 1000 + math.floor(micros / 1000)
local held = redis.call('HMGET', KEYS[1], 'token', 'run', 'name', 'since', 'until')
if held[1] and held[2] ~= ARGV[1] and tonumber(held[5]) > now then
  return {'', held[3], held[4], string.format('%.0f', tonumber(held[5]) - now)}
end
-- Grows, whatever the clock does, and is not given twice where Redis went back.
local token = string.format('%.0f', math.max(seconds * 1000000 + micros, tonumber(held[1] or 0) + 1))
redis.call('HSET', KEYS[1], 'token', token, 'run', ARGV[1], 'name', ARGV[2], 'since', time[1],
  'until', string.format('%.0f', now + tonumber(ARGV[3])))
return {token, time[1]}
