# Runs on the host, in Ansible's shell: whether nobody but root can change what is about to run as root.
# judge PATH prints the places on the way to it that others can change, links followed, as mpsctl judges them. The user
# in $also counts as root does, if it is set.
judge() {
  is_root || return 0
  : "${also:=0}"
  place='' left=${1#/} links=0
  set -- /
  while [ -n "$left" ]; do
    part=${left%%/*}
    case $left in */*) left=${left#*/} ;; *) left='' ;; esac
    case $part in '' | .) continue ;; ..) place=${place%/*} && continue ;; esac
    place=$place/$part
    set -- "$@" "$place"
    if [ -L "$place" ]; then
      links=$((links + 1))
      [ "$links" -le 40 ] || return 0
      target=$(readlink -- "$place")
      case $target in /*) place='' ;; *) place=${place%/*} ;; esac
      left=${target#/}${left:+/$left}
    fi
  done
  LC_ALL=C ls -ldn -- "$@" 2>/dev/null | while read -r mode _ user group _ _ _ _ name; do
    case $mode:$group in
      l*) [ "$user" = 0 ] || [ "$user" = "$also" ] && continue ;;
      ????????w*) ;;
      ?????w*+:* | ?????w*:[!0]*) ;;
      *) [ "$user" = 0 ] || [ "$user" = "$also" ] && continue ;;
    esac
    printf '%s: %s user %s group %s\n' "$name" "$mode" "$user" "$group"
  done
}
# The host's root alone has something to lose; to the root of a user namespace the host's files are nobody's.
is_root() {
  read -r first outside count </proc/self/uid_map || return 0
  [ "$first $outside $count" = '0 0 4294967295' ] && [ "$(id -u)" = 0 ]
}
