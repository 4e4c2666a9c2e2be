#!lua flags=no-writes
-- The books under one cut.
--   KEYS  payloads, books
--   reply {inserted_total, evicted_total, resident, items, bytes, inserted items, lost_total}, as text
local names = {'inserted_total', 'evicted_total', 'resident', 'bytes', 'base_id', 'next_id', 'lost_total'}
local books = redis.call('HMGET', KEYS[2], unpack(names))
for i = 1, #names do books[i] = books[i] or '0' end
local inserted = string.format('%.0f', tonumber(books[6]) - tonumber(books[5]))
return {books[1], books[2], books[3], redis.call('HLEN', KEYS[1]), books[4], inserted, books[7]}
