# The coefficients of what a BLIS workload specification asks for, from the loads of a folder:
#
#   awk -v table=loads.csv -v load=NAME -v otherwise=NAME -f pick.awk load.yaml
#
# prints alpha, beta and whose they are. A named load has its own. Else those of the steady loads
# with fewer and more decodes are mixed, and of those with shorter and longer prompts and outputs: what
# decides is how many decodes the requests per second keep running, or the clients of a closed loop. Where the file does not say that, the load is the one for such cases, or nothing.
#
# servers are the instances that share the requests. Of a load in flags, rate or closed, input and output
# tokens are variables; of one that BLIS knows by its name, preset, the file is BLIS's defaults.
function number(text) { return text + 0 }
# Ends a distribution of lengths: its mean goes to where it belongs.
function close_lengths() {
	if (side == "") return
	if (kind == "lognormal") mean = exp(mu + sigma * sigma / 2)
	if (weights > 0) mean = weighted / weights
	if (kind == "pareto_lognormal" || mean <= 0) unknown = 1
	if (side == "input") input = mean; else output = mean
	side = kind = ""
}
# Ends a client: its share of the requests or its place in a closed loop.
function close_client() {
	close_lengths()
	if (!open) return
	if (concurrency > 0) { closed += concurrency; share = concurrency }
	else opened++
	if (prefixed && !prefix) prefix = 50 # BLIS's own length of a group without one
	shares += share; inputs += share * input; outputs += share * output; prefixes += share * prefix
	open = concurrency = prefix = prefixed = 0; share = 1
}
# Adds a line of the table to the answer, with a weight.
function take(row, weight,    i) {
	if (weight <= 0) return
	for (i = 1; i <= 14; i++) answer[i] += weight * cell[row, first + i - 1]
	whose = whose (whose ? ", " : "") sprintf("%s (%.0f %%)", cell[row, 1], 100 * weight)
}
function tell(    i, text) {
	# An arrival waits for its whole prompt, also where its first tokens are cached.
	if (!named) answer[1] += prefixes * cell[1, per_token]
	for (i = 1; i <= 14; i++) text = text sprintf("%.10g", answer[i]) (i == 3 || i == 14 ? " " : ",")
	print text whose why
}
# Finds the steady loads of given lengths with about n decodes: below and above, how near the first is.
function around(prompt, made, n,    i) {
	below = above = 0
	for (i = 1; i <= rows; i++) if (cell[i, 1] ~ /^decodes-/ && cell[i, 3] == prompt && cell[i, 4] == made) {
		above = i
		if (cell[i, 2] >= n) break
		below = i
	}
	if (!below) below = above
	nearer = below == above ? 1 : log(cell[above, 2] / n) / log(cell[above, 2] / cell[below, 2])
}
# Returns a column of the loads around n decodes and the asked lengths.
function blend(n, column,    i, sum) {
	for (i = 1; i <= 4; i++) if (corner[i] > 0) {
		around(of_prompt[i], of_output[i], n)
		sum += corner[i] * (nearer * cell[below, column] + (1 - nearer) * cell[above, column])
	}
	return sum
}
# Returns the requests per second that keep n decodes running.
function served(n,    made) {
	made = blend(n, 5)
	return made / (output + made * input * blend(n, 6) / 1e6)
}
# Returns the decodes of a step of the asked load.
function running(    i, least, most, n) {
	least = 1e9; most = 0
	for (i = 1; i <= rows; i++) if (cell[i, 1] ~ /^decodes-/) {
		if (cell[i, 2] < least) least = cell[i, 2]
		if (cell[i, 2] > most) most = cell[i, 2]
	}
	if (closed) return closed < least ? least : closed > most ? most : closed
	if (rate > 1.05 * served(most)) beyond = ", more than it can keep up with"
	if (rate <= served(least)) return least
	if (rate >= served(most)) return most
	for (i = 0; i < 20; i++) {
		n = sqrt(least * most)
		if (served(n) < rate) least = n; else most = n
	}
	return n
}
# Finds the tokens of steady loads, in a column, between which the asked ones lie: low and high.
# Returns how near the lower ones are, by their reciprocals.
function between(column, asked,    i, n) {
	low = high = 0
	for (i = 1; i <= rows; i++) if (cell[i, 1] ~ /^decodes-/) {
		n = cell[i, column]
		if (n <= asked && n > low) low = n
		if (n >= asked && (!high || n < high)) high = n
	}
	if (!low) low = high
	if (!high) high = low
	return low == high ? 1 : (1 / asked - 1 / high) / (1 / low - 1 / high)
}
BEGIN {
	share = 1; indent = -1
	servers = servers > 1 ? servers : 1
	while ((getline line < table) > 0) {
		count = split(line, field, ",")
		if (!first) {
			for (i = 1; i <= count; i++) {
				if (field[i] == "alpha_arrival_us") first = i
				if (field[i] == "arrival_prompt_token_us") per_token = i
			}
			continue
		}
		rows++
		for (i = 1; i <= count; i++) cell[rows, i] = field[i]
	}
}
{
	sub(/(^|[ \t])#.*/, "")
	if (preset != "") { # the lines below its name, which are indented further
		match($0, /^ */)
		if (RLENGTH <= indent) inside = 0
		text = $0; gsub(/["' \t]/, "", text)
		if (text == preset ":") { inside = 1; indent = RLENGTH; next }
		if (!inside || text !~ /:/) next
		split(text, part, ":")
		key = part[1]
		if (part[2] == "") side = key
		if (key == "prompt_tokens" || key == "tokens" && side == "prompt") input = number(part[2])
		if (key == "output_tokens" || key == "tokens" && side == "output") output = number(part[2])
		if (key == "prefix_tokens") prefixes = number(part[2])
		next
	}
	count = split($0, part, /[{},]/)
	for (i = 1; i <= count; i++) {
		text = part[i]
		item = text ~ /^[ \t]*- /
		sub(/^[ \t]*(- *)?/, "", text)
		if (item && section == "clients") { close_client(); open = 1 }
		if (text !~ /:/) continue
		key = value = text
		sub(/:.*/, "", key); sub(/^[^:]*:[ \t]*/, "", value)
		gsub(/["' \t]/, "", key); gsub(/["' \t]/, "", value)
		if (key ~ /^(cohorts|servegen_data|lifecycle|multi_turn|think_time_us)$/) unknown = 1
		if (key ~ /^(clients|inference_perf)$/) section = key
		if (key == "clients") open = value ~ /^\[/
		if (key ~ /^(input|output)_distribution$/) {
			close_lengths(); side = substr(key, 1, index(key, "_") - 1)
			mean = mu = sigma = weighted = weights = 0
		} else if (key ~ /^(arrival|network|prefix_group|prefix_length|slo_class|streaming)$/) {
			close_lengths()
			if (key == "prefix_group" && value != "") prefixed = 1
			if (key == "prefix_length") prefix = number(value)
		} else if (side != "") {
			if (key == "type") kind = value
			else if (key == "mean" || key == "value") mean = number(value)
			else if (key == "mu") mu = number(value)
			else if (key == "sigma") sigma = number(value)
			else if (key ~ /^[0-9]+$/) { weights += number(value); weighted += key * value }
		}
		if (key == "aggregate_rate") rate = number(value)
		if (key == "rate_fraction") share = number(value)
		if (key == "concurrency") concurrency = number(value)
		if (section != "inference_perf") continue
		if (key == "rate") stage = number(value)
		if (key == "duration") { sent += stage * value; rates += stage * stage * value }
		if (key == "question_len") input = number(value)
		if (key == "system_prompt_len") prefixes = number(value)
		if (key == "output_len") output = number(value)
		if (key == "enable_multi_turn_chat" && value == "true") unknown = 1
	}
}
END {
	close_client()
	if (sent > 0) { rate = rates / sent; shares = 1; inputs = input; outputs = output }
	if (shares > 0) { input = inputs / shares; output = outputs / shares }
	if (shares > 0 && !sent) prefixes /= shares
	rate /= servers; closed /= servers
	if (input <= 0) unknown = 1
	if (closed ? opened : rate <= 0 || output <= 0) unknown = 1
	if (load != "" || unknown) {
		named = load != ""
		if (load == "") { why = ", since nothing says how many requests run at a time"; load = otherwise }
		for (i = 1; i <= rows; i++) if (load != "" && cell[i, 1] == load) { take(i, 1); tell() }
		exit
	}
	# What a prompt costs beyond its tokens is spread over them and over the prompts of a step, of which
	# shorter outputs bring more.
	near = between(3, input); of_prompt[1] = of_prompt[2] = low; of_prompt[3] = of_prompt[4] = high
	few = between(4, output); of_output[1] = of_output[3] = low; of_output[2] = of_output[4] = high
	corner[1] = near * few; corner[2] = near * (1 - few)
	corner[3] = (1 - near) * few; corner[4] = (1 - near) * (1 - few)
	n = running()
	for (k = 1; k <= 4; k++) {
		around(of_prompt[k], of_output[k], n)
		take(below, corner[k] * nearer)
		take(above, corner[k] * (1 - nearer))
	}
	why = closed ? " for " closed " requests at a time" \
		: sprintf(" for %.4g requests/s of %.0f + %.0f tokens", rate, input, output)
	if (servers > 1) why = why " on each of " servers " servers"
	why = why beyond
	tell()
}
