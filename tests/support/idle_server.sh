# An MCP server over stdio with one tool. It needs little memory.
while read -r line; do
  id=${line##*\"id\":}
  id=${id%%[,\}]*}
  case $line in
    *'"initialize"'*)
      result='{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"idle","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"nothing","inputSchema":{"type":"object"}}]}' ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
