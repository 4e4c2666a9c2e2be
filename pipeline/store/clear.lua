#!lua flags=allow-oom
-- Deletes everything of a store, for a run that begins anew.
--   KEYS  owner, then the keys to delete
--   ARGV  owner's token
--   reply keys deleted
-- include guard
local refusal = fenced(KEYS[1], ARGV[1])
if refusal then return refusal end
return redis.call('UNLINK', unpack(KEYS, 2))
