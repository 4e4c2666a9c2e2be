-- What was stored last of each environment: of its latest runs, latest first, "run row next_index", joined by ";".
-- So an item is stored once, and a successor learns how far each run came. Here each stands behind a ";", and what is
-- mostly asked for, the latest run, is found without looking at the others.
local RUNS = 8 -- of one environment that are remembered: a worker starts its environments anew within its budget
-- Reads the names of the items ("environment run row next_index valid", each the first of its arguments) and the runs
-- of their environments: argument -> its five words, environment -> runs.
local function load_runs(key, first, fields)
  local names, environments, runs_of = {}, {}, {}
  for i = first, #ARGV, fields do
    names[i] = {string.match(ARGV[i], '^(%d+) (%d+) (%-?%d+) (%-?%d+) (%d+)$')}
    environments[#environments + 1] = names[i][1]
  end
  local found = redis.call('HMGET', key, unpack(environments))
  for i, environment in ipairs(environments) do
    runs_of[environment] = found[i] and ';' .. found[i] or ''
  end
  return names, runs_of
end
local function is_repeat(runs, run, row)
  local _, stop = string.find(runs, ';' .. run .. ' ', 1, true)
  return stop ~= nil and tonumber(row) <= tonumber(string.match(runs, '^%-?%d+', stop + 1))
end
local function with_run(runs, run, row, next_index)
  local start, stop = string.find(runs, ';' .. run .. ' ', 1, true)
  local others = runs
  if start then
    local after = string.find(runs, ';', stop, true)
    others = string.sub(runs, 1, start - 1) .. (after and string.sub(runs, after) or '')
  elseif select(2, string.gsub(runs, ';', ';')) >= RUNS then
    others = string.match(runs, '^(.*);')
  end
  return table.concat({';', run, ' ', row, ' ', next_index, others})
end
local function save_runs(key, runs_of, changed)
  local fields = {}
  for environment in pairs(changed) do
    fields[#fields + 1] = environment
    fields[#fields + 1] = string.sub(runs_of[environment], 2)
  end
  if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
end
