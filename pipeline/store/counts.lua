#!lua flags=no-writes
-- The books under one cut.
--   KEYS  stream, books
--   reply {put_total, acknowledged_total, dropped_total, waiting, length}
local books = redis.call('HMGET', KEYS[2], 'put_total', 'acknowledged_total', 'dropped_total', 'waiting')
local reply = {}
for i = 1, 4 do reply[i] = tonumber(books[i] or 0) or 0 end
reply[5] = redis.call('XLEN', KEYS[1])
return reply
