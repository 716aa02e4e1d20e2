def test_an_unknown_data_set_is_refused(run):
    code, _, err = run("data fetch mnist")
    assert code == 2
    assert "`NAME` expects one of fashion-mnist, cifar10" in err
