"""All checks, one after the other. Ends with `N passed, N failed`."""

import os
import sys

import charts
import common
import packages

charts.main()
packages.main()
if os.environ.get("A2ABUS_TEST_KAFKA") and os.environ.get("A2ABUS_TEST_NATS"):
    import processes

    processes.main()
else:
    print("no A2ABUS_TEST_KAFKA and A2ABUS_TEST_NATS: the processes are LEFT OUT")
    common.failed += os.environ.get("A2ABUS_REQUIRE_BROKERS", "") not in ("", "0")
print(f"{common.passed} passed, {common.failed} failed")
sys.exit(common.failed > 0)
