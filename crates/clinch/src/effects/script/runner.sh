# Runs one script for one job. The environment comes over the socket that is our standard input, as NAME=VALUE with a zero
# byte after each, then an empty one, then the script. Standard output and error belong to the script.
exec 3<&0 </dev/null
# Bytes are counted, whatever is a character here.
clinch_is_long() {
    local LC_ALL=C
    [ "${#1}" -gt 100000 ]
}
while IFS= read -r -d '' -u 3 clinch_pair && [ -n "$clinch_pair" ]; do
    # No program can be handed a longer one; the script itself can read it all the same.
    if clinch_is_long "$clinch_pair"; then
        printf -v "${clinch_pair%%=*}" %s "${clinch_pair#*=}"
    else
        export "$clinch_pair"
    fi
done
IFS= read -r -d '' -u 3 clinch_script || exit 1
# Standard input ends when the server is gone; then all of us go.
{
    exec >/dev/null 2>&1
    read -r -u 3
    kill -KILL 0
} &
# It is none of those that a script waits for.
disown
exec 3<&-
unset -f clinch_is_long
unset clinch_pair
eval "unset clinch_script; $clinch_script"
