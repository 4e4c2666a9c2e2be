-- Whose store it is (ownership.py). A writer that is not refused goes on; without a token it asks for nothing.
--   reply of fenced: nil, or the error that the script returns
-- A smaller token than the writer's: Redis came back with older data, and so with an older owner.
local function fenced(owner, token)
  if token == '' then return nil end
  local held = redis.call('HMGET', owner, 'token', 'name', 'since')
  if held[1] and tonumber(held[1]) > tonumber(token) then
    return redis.error_reply('FENCED ' .. held[2] .. ' since ' .. held[3])
  end
  return nil
end
