// Holds manifests of custom resources against the Go types of their APIs: a member that the type does not have, or of
// another type, is an error. Reads a list of objects as JSON from standard input; prints one line for each fault.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	gateway "sigs.k8s.io/gateway-api/apis/v1"
)

var types = map[string]func() any{
	"gateway.networking.k8s.io/v1 HTTPRoute":  func() any { return &gateway.HTTPRoute{} },
}

func main() {
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		fmt.Println("standard input:", err)
		os.Exit(2)
	}
	faults := 0
	for _, object := range objects {
		var head struct{ APIVersion, Kind string }
		_ = json.Unmarshal(object, &head)
		name := head.APIVersion + " " + head.Kind
		fault := error(fmt.Errorf("no type is known"))
		if make, known := types[name]; known {
			decoder := json.NewDecoder(bytes.NewReader(object))
			decoder.DisallowUnknownFields()
			fault = decoder.Decode(make())
		}
		if fault != nil {
			fmt.Printf("%s: %v\n", name, fault)
			faults++
		}
	}
	if faults > 0 {
		os.Exit(1)
	}
}
