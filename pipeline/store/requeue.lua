#!lua flags=allow-oom
-- Puts back what consumers took that have not been heard of for long: at the end of the stream, for anyone to take.
--   KEYS  stream, alive, owner
--   ARGV  group, own consumer, idle milliseconds, most items, owner's token
--   reply items put back
-- An old handle of such an item ends nothing any more (acknowledge.lua: XDEL finds no entry), so it is counted once.
-- include guard
local refusal = fenced(KEYS[3], ARGV[5])
if refusal then return refusal end
local stream, group, own, idle, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = tonumber(redis.call('TIME')[1]) * 1000
local moved = 0
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local consumer = {}
  for i = 1, #fields, 2 do consumer[fields[i]] = fields[i + 1] end
  local heard = tonumber(redis.call('HGET', KEYS[2], consumer.name) or 0) * 1000
  if consumer.name ~= own and consumer.idle >= idle and now - heard >= idle then
    if consumer.pending == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer.name)
      redis.call('HDEL', KEYS[2], consumer.name)
    else
      for _, pending in ipairs(redis.call('XPENDING', stream, group, '-', '+', limit, consumer.name)) do
        local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
        redis.call('XACK', stream, group, pending[1])
        if entry then
          redis.call('XDEL', stream, pending[1])
          redis.call('XADD', stream, '*', unpack(entry[2]))
          moved = moved + 1
        end
      end
    end
  end
end
return moved
