#!lua flags=allow-oom
-- Makes the consumer group where it is missing; whoever makes it begins a new epoch, for what was there is lost.
-- So it is where what is there is older than the mark: which of it is trained already nobody knows.
--   KEYS  stream, epoch, books, last, replies, owner
--   ARGV  group, new epoch, owner's token, mark
--   reply {epoch, mark}
-- include guard
-- include fifo_mark
local refusal = fenced(KEYS[6], ARGV[3])
if refusal then return refusal end
if went_back(KEYS[2], KEYS[3], ARGV[4]) then redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]) end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err == nil then
  redis.call('SET', KEYS[2], ARGV[2])
  if redis.call('XLEN', KEYS[1]) == 0 then -- the books of a stream that is gone do not close
    redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
  end
elseif string.find(made.err, 'BUSYGROUP', 1, true) then
  redis.call('SET', KEYS[2], ARGV[2], 'NX')
else
  return made
end
return {redis.call('GET', KEYS[2]), mark_of(KEYS[2], KEYS[3])}
