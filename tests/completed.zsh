# Types $WORDS and a tabulator into an interactive zsh that has the completion script, and prints what
# that shows, as soon as it has $EXPECTED, and after ten seconds at the latest.
zmodload zsh/zpty

# Reads what the shell shows until it matches a pattern.
read_until() {
    local piece
    shown=
    for attempt in {1..100}; do
        while zpty -r -t shell piece; do shown+=$piece; done
        [[ $shown == ${~1} ]] && return
        sleep 0.1
    done
}

zpty -b shell zsh -f -i
zpty -w shell 'PROMPT= RPS1=; autoload -Uz compinit && compinit -u -D; source <(kube-ipvs completion zsh)'
# The line itself is shown as well, so the word is put together where it is printed.
zpty -w shell 'print is-"ready"'
read_until '*is-ready*'
zpty -w -n shell "$WORDS"$'\t'
read_until "*$EXPECTED*"
print -r -- "$shown"
