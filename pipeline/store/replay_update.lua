#!lua flags=allow-oom
-- Sets priorities; what is not there any more is passed over.
--   KEYS  entries, owner
--   ARGV  owner's token, then per item: id, priority (8 bytes)
--   reply entries set
-- include guard
local refusal = fenced(KEYS[2], ARGV[1])
if refusal then return refusal end
local ids, set = {}, {}
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local entries = redis.call('HMGET', KEYS[1], unpack(ids))
for i, entry in ipairs(entries) do
  if entry then
    set[#set + 1] = ids[i]
    set[#set + 1] = ARGV[2 * i + 1] .. string.sub(entry, 9) -- valid and size stay
  end
end
if #set > 0 then redis.call('HSET', KEYS[1], unpack(set)) end
return #set / 2
